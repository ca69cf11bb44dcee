"""The problems that an environment brings, each with what the agent sees of it at first.

The first observation is what the environment really gives when it is reset for the problem, not what somebody wrote
down: the prompt and the episode then belong together, and a session checks that they do.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from agentfly_lib.data.validate import RowFormat, SourcedProblem, build_problems
from agentfly_lib.envs.session import FIRST_OBSERVATION
from agentfly_lib.envs.spec import EnvironmentSpec
from agentfly_lib.errors import ConfigError, DataError, RolloutError
from agentfly_lib.rows.sources import Row
from agentfly_lib.together import together

__all__ = ["Progress", "check_count", "environment_contents", "environment_problems"]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the problems done and the problems in all."""
Split = Literal["train", "eval"]
_MOST_UNASKED = 100_000
"""Problems that are taken without being told how many."""


def environment_problems(
    spec: EnvironmentSpec, split: Split, count: int | None, *, instances: int = 2, progress: Progress | None = None
) -> list[SourcedProblem]:
    """The first `count` problems of a split, or as many as there are; all of them for None.

    The user's message is the question and, where the environment wants it, the first observation below; that is also in
    the column `first_observation`. Blocks.

    Raises `DataError` naming the problem that cannot be used, `UserError` if the environment cannot run here.
    """
    spec.check()
    source = f"environment {spec.kind.name}, {split}"
    found = _rows(spec, split, count, source)
    if spec.kind.first_observation and found:
        with ThreadPoolExecutor(1) as elsewhere:  # an event loop may be running here
            observations = elsewhere.submit(asyncio.run, _first_observations(spec, found, instances, progress)).result()
        found = [_with_observation(row, seen) for row, seen in zip(found, observations, strict=True)]
    return build_problems(found, RowFormat(), source=source)


def environment_contents(spec: EnvironmentSpec) -> dict[str, str]:
    """What else decides about the problems than names and settings: the versions of what makes them."""
    kind = spec.kind
    contents = {f"package {name}": _version(name) for name in kind.packages}
    try:
        file = inspect.getsourcefile(inspect.unwrap(kind.make))
        contents["source"] = hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except (OSError, TypeError):  # made in a shell, or not by Python code
        contents["source"] = getattr(kind.make, "__qualname__", repr(type(kind.make)))
    return contents


def check_count(spec: EnvironmentSpec, count: int | None) -> None:
    """Raises `ConfigError` if problems never end and nothing says how many are wanted."""
    if count is None and spec.kind.endless:
        raise _too_many(f"environment {spec.kind.name} makes problems without end")


def _too_many(what: str) -> ConfigError:
    return ConfigError(f"{what}; say how many to train on, for example data.train_problems = 1024")


def _rows(spec: EnvironmentSpec, split: Split, count: int | None, source: str) -> list[Row]:
    check_count(spec, count)
    try:
        most = _MOST_UNASKED + 1 if count is None else count
        rows = list(itertools.islice(spec.kind.problems(spec.settings, split), most))
    except ImportError as error:
        raise DataError(
            f"{source}: the problems are listed on this machine, wherever their episodes are, and {error}; install "
            "what is missing, or give the problems as files"
        ) from error
    if count is None and len(rows) > _MOST_UNASKED:
        raise _too_many(f"{source}: there are more than {_MOST_UNASKED} problems, and perhaps no end of them")
    return [Row(source=source, unit="problem", number=n, values=dict(values)) for n, values in enumerate(rows, start=1)]


async def _first_observations(
    spec: EnvironmentSpec, rows: Sequence[Row], instances: int, progress: Progress | None
) -> list[str]:
    """In the order of the rows; each instance takes the next row that nobody has taken."""
    seen: dict[int, str] = {}
    left = iter(enumerate(rows))

    async def work() -> None:
        async with AsyncExitStack() as stack:
            instance = await stack.enter_async_context(spec.open())
            for index, row in left:
                try:
                    seen[index] = await instance.reset(_columns(row))
                except RolloutError as error:
                    raise DataError(f"{row.where}: no episode can begin with it: {error}") from error
                if progress is not None:
                    progress(len(seen), len(rows))

    await together(work() for _ in range(min(instances, len(rows))))
    return [seen[index] for index in range(len(rows))]


def _columns(row: Row) -> dict[str, Any]:
    """What a session will reset with: the problem's free columns."""
    return {name: value for name, value in row.values.items() if name not in ("question", "messages")}


def _with_observation(row: Row, observation: str) -> Row:
    question = row.values.get("question")
    if not isinstance(question, str):
        raise DataError(f"{row.where}: a problem of an environment has a question, which is text")
    values = row.values | {"question": f"{question}\n\n{observation}".strip(), FIRST_OBSERVATION: observation}
    return Row(source=row.source, unit=row.unit, number=row.number, values=values)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(not installed)"
