"""Objects by name, as recipes write them: one that we ship, or `package.module:name` of the user's."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, TypeVar

from agentfly_lib.errors import ConfigError

__all__ = ["find_named", "near_or_all"]

Found = TypeVar("Found")


def near_or_all(name: str, known: Iterable[str], *, all_of: str = "there are") -> str:
    """What to say of a name that there is not: the nearest one, or all that are known after `all_of`."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{all_of}: {', '.join(known) or 'none'}"


def find_named(
    name: str, shipped: Mapping[str, str], fits: Callable[[Any], TypeGuard[Found]], *, noun: str, advice: str
) -> Found:
    """Imports the object of a name.

    shipped: from our own names to `module:name`.
    fits: whether an object is of the kind that is wanted; `noun` is what the kind is called, `advice` what to do about
        an object of another.

    Raises `ConfigError` with the nearest name, or with what could not be imported.
    """
    if ":" not in name and name not in shipped:
        near = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(shipped)) or 'none of ours'}."
        raise ConfigError(f"unknown {noun} {name!r}: {hint} Name your own as package.module:name")
    module_name, _, attribute = shipped.get(name, name).partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{noun} {name!r}: write it as package.module:name")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ConfigError(
            f"{noun} {name!r}: cannot import {module_name}: {type(error).__name__}: {error}. Modules are looked for in "
            "the working folder and among the installed packages"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [other for other, value in vars(found).items() if fits(value)], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{noun} {name!r}: {module_name} has no {attribute}{hint}")
        found = getattr(found, part)
    if not fits(found):
        raise ConfigError(f"{noun} {name!r} is a {type(found).__name__}; {advice}")
    return found
