"""Environments by name: those that we ship, those that installed packages add, and `package.module:KIND`.

A package adds its own by an entry point:

    [project.entry-points."agentfly.environments"]
    maze = "maze.environment:KIND"
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeGuard

from pydantic import ValidationError

from agentfly_lib.configs.faults import explain
from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings
from agentfly_lib.errors import ConfigError
from agentfly_lib.named import find_named

__all__ = [
    "ENTRY_POINTS",
    "SHIPPED_ENVIRONMENTS",
    "environment_names",
    "get_environment",
    "read_settings",
    "reference_of",
]

ENTRY_POINTS = "agentfly.environments"

SHIPPED_ENVIRONMENTS = {
    name: f"agentfly_lib.envs.{name}:KIND"
    for name in (
        "alfworld",
        "bfcl",
        "chess",
        "miniwob",
        "reasoning_gym",
        "scienceworld",
        "search",
        "swe",
        "textworld",
        "webshop",
    )
} | {"gymnasium": "agentfly_lib.envs.gym:KIND", "openenv": "agentfly_lib.envs.openenv:KIND"}
"""From a name to where it is defined; imported when asked for."""


def environment_names() -> list[str]:
    """Every name that `get_environment` knows, sorted."""
    return sorted({*SHIPPED_ENVIRONMENTS, *_installed()})


def get_environment(name: str) -> EnvironmentKind:
    """The kind of a name. Raises `ConfigError` with the nearest name, or with what could not be imported."""
    known = SHIPPED_ENVIRONMENTS | _installed()
    return find_named(name, known, _is_kind, noun="environment", advice="name a constant that is an EnvironmentKind")


def reference_of(kind: EnvironmentKind) -> str:
    """What another process finds `kind` by: its name if that is known, or `package.module:NAME` of where it stands.

    Raises `ConfigError` if it stands where no other process can look.
    """
    if kind.name in environment_names() and get_environment(kind.name) is kind:
        return kind.name
    own = getattr(kind.make, "__module__", "")
    for name in sorted(sys.modules, key=lambda name: name != own):
        if name != "__main__":
            for attribute, value in list(getattr(sys.modules[name], "__dict__", {}).items()):
                if value is kind:
                    return f"{name}:{attribute}"
    raise ConfigError(
        f"environment {kind.name!r} runs in a separate process, which cannot import it: define it as a constant of "
        'a module that can be imported, or run it with place="thread"'
    )


def read_settings(kind: EnvironmentKind, values: Mapping[str, Any], *, where: str) -> EnvironmentSettings:
    """Checks settings. Raises `ConfigError` that names each culprit; `where` is the table that they stand in."""
    try:
        return kind.settings.model_validate(dict(values))
    except ValidationError as error:
        faults = explain(error, kind.settings.model_fields, where=where)
        raise ConfigError(f"environment {kind.name!r}: {faults}") from error


def _is_kind(found: Any) -> TypeGuard[EnvironmentKind]:
    return isinstance(found, EnvironmentKind)


@functools.cache
def _installed() -> dict[str, str]:
    """What installed packages add. Ours cannot be taken over by a name."""
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {name: target for name, target in found.items() if name not in SHIPPED_ENVIRONMENTS}
