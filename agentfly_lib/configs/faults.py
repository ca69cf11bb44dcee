"""What pydantic found wrong with values that a user wrote, in words that name the key and the nearest valid one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["UNKNOWN_KEY", "explain", "fault_text", "near_key"]

UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""Types of pydantic's errors, for models and for calls."""
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_LONGEST = 80


def explain(error: ValidationError, known: Iterable[str], *, where: str) -> str:
    """Every fault of the values in the table `where`, whose valid keys are `known`."""
    return "; ".join(_explain(fault, list(known), where) for fault in error.errors())


def fault_text(fault: ErrorDetails, key: str) -> str:
    """One fault of a known key."""
    if fault["type"] in _MISSING:
        return f"{key} is required and not set"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{key} = {_short(fault['input'])}: {message}" if key else message


def near_key(key: str, known: Iterable[str], *, where: str = "") -> str:
    """What to say of a key that there is not; `where` is put before the key that may be meant."""
    known = list(known)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {f'{where}.' if where else ''}{near[0]}?"
    return f"valid keys: {', '.join(known) or 'none'}"


def _explain(fault: ErrorDetails, known: list[str], where: str) -> str:
    path = [str(part) for part in fault["loc"]]
    if fault["type"] not in UNKNOWN_KEY:
        return fault_text(fault, ".".join([where, *path]))
    hint = f": {near_key(path[0], known)}" if len(path) == 1 else ""
    return f"unknown key {'.'.join([where, *path])}{hint}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
