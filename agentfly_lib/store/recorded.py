"""What a run has written down of itself: its recipe, and what its updates did.

Its folder may have been copied, renamed or moved since: the run is the one that lies there, by that folder's name.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.errors import UserError
from agentfly_lib.refs import StepReport
from agentfly_lib.store.arrow import REDO
from agentfly_lib.store.atomic import Model, read_model, write_bytes, write_model
from agentfly_lib.store.layout import RunDirectory, StepDirectory

__all__ = ["actors_namespace", "began_with", "read_update", "recipe_of", "recorded_config"]


def recorded_config(directory: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a run that exists, with `run.name` and `run.root` as its folder has them; then the overrides.

    Raises `ConfigError` if there is none, or it cannot be read.
    """
    place = directory.resolve()
    found = [
        f"run.{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in {"name": place.name, "root": str(place.parent)}.items()
    ]
    return load_config(RunDirectory(place).config_file, [*found, *overrides])


def recipe_of(policy: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of the run that a policy belongs to: a run directory, a checkpoint of one, or its `hf` folder.

    Raises `UserError` if it belongs to none.
    """
    place = policy.resolve()
    for folder in (place, *place.parents[1:3]):
        if RunDirectory(folder).config_file.exists():
            return recorded_config(folder, overrides)
    raise UserError(f"{policy} is not inside a run directory; name a recipe to evaluate it with: --recipe")


def actors_namespace(run: RunDirectory) -> str:
    """Of the run's Ray actors: the same from every node that sees the directory, and another for a copy of it."""
    if not run.id_file.exists():
        write_bytes(run.id_file, uuid.uuid4().hex.encode())
    mark = run.id_file.read_bytes() + str(run.path.resolve()).encode()
    return f"agentfly-{run.path.name}-{hashlib.sha256(mark).hexdigest()[:12]}"


def began_with(file: Path, now: Model) -> Model:
    """What a run has written down that it began with: `now`, if that is its beginning. Raises `ShardError`."""
    if not file.exists():
        write_model(file, now)
        return now
    return read_model(file, type(now), remedy="restore it, or remove it if what it names is as it was")


def read_update(step: StepDirectory) -> StepReport:
    """What the update of a step did. Raises `ShardError` naming the file if it is missing or damaged."""
    return read_model(step.update_file, StepReport, remedy=REDO)
