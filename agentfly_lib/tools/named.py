"""Objects by name, as recipes write them: one that we ship, or `package.module:name` of the user's."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TypeVar

from agentfly_lib.errors import ConfigError

__all__ = ["find_named"]

Found = TypeVar("Found")
Also = TypeVar("Also")


def find_named(name: str, shipped: Mapping[str, str], kind: type[Found], *also: type[Also]) -> Found | Also:
    """Finds an object of a kind (`Tool`, `Reward`) or of another that will do; `shipped` maps our names to
    `module:name`.

    Raises `ConfigError` with the nearest name, or with what could not be imported.
    """
    noun, kinds = kind.__name__.lower(), (kind, *also)
    if ":" not in name and name not in shipped:
        near = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"those we ship: {', '.join(sorted(shipped))}."
        raise ConfigError(f"unknown {noun} {name!r}: {hint} One of your own is named as package.module:name")
    module_name, _, attribute = shipped.get(name, name).partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{noun} {name!r}: write it as package.module:name")
    try:
        found = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ConfigError(
            f"{noun} {name!r}: cannot import {module_name}: {type(error).__name__}: {error}. Modules are looked for in "
            "the working folder and among the installed packages"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [n for n, v in vars(found).items() if isinstance(v, kinds)], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{noun} {name!r}: {module_name} has no {attribute}{hint}")
        found = getattr(found, part)
    if not isinstance(found, kinds):
        raise ConfigError(f"{noun} {name!r} is a {type(found).__name__}; put @{noun} on the function")
    return found
