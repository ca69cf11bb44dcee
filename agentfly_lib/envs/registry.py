"""Environments by name: those that we ship, those that installed packages add, and `package.module:KIND`.

A package adds its own by an entry point:

    [project.entry-points."agentfly.environments"]
    maze = "maze.environment:KIND"
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings
from agentfly_lib.errors import ConfigError

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
    target = name if ":" in name else _target(name)
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ConfigError(
            f"environment {name!r}: cannot import {target}: {type(error).__name__}: {error}. Modules are looked for in "
            "the working folder and among the installed packages"
        ) from error
    if not isinstance(found, EnvironmentKind):
        raise ConfigError(f"environment {name!r}: {target} is a {type(found).__name__}, not an EnvironmentKind")
    return found


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
        f"environment {kind.name!r} is to run in a process of its own, which cannot find it: define it as a constant "
        'of a module that can be imported, or run it with place="thread"'
    )


def read_settings(kind: EnvironmentKind, values: Mapping[str, Any], *, where: str) -> EnvironmentSettings:
    """Checks settings. Raises `ConfigError` that names each culprit; `where` is the table that they stand in."""
    try:
        return kind.settings.model_validate(dict(values))
    except ValidationError as error:
        faults = (_explain(kind.settings, dict(fault), where) for fault in error.errors())
        raise ConfigError(f"environment {kind.name!r}: {'; '.join(faults)}") from error


def _target(name: str) -> str:
    known = SHIPPED_ENVIRONMENTS | _installed()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}."
    raise ConfigError(f"unknown environment {name!r}: {hint} One of your own is named as package.module:KIND")


@functools.cache
def _installed() -> dict[str, str]:
    """What installed packages add. Ours cannot be taken over by a name."""
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {name: target for name, target in found.items() if name not in SHIPPED_ENVIRONMENTS}


def _explain(settings: type[EnvironmentSettings], fault: Mapping[str, Any], where: str) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join([where, *path])
    if fault["type"] == "extra_forbidden" and len(path) == 1:
        near = difflib.get_close_matches(path[0], settings.model_fields, n=1)
        known = ", ".join(settings.model_fields) or "none"
        return f"unknown key {key}: {f'did you mean {near[0]}?' if near else f'valid keys: {known}'}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" if fault["type"] == "missing" else f"{key} = {fault['input']!r}: {message}"
