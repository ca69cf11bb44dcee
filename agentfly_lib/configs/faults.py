"""What pydantic found wrong with values that a user wrote, in words that name the key and the nearest valid one."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentfly_lib.configs.base import SecretError, first_secret

__all__ = ["UNKNOWN_KEY", "explain", "fault_text", "near_key", "shown"]

UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""Types of pydantic's errors, for models and for calls."""
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_NO_TYPE, _WRONG_TYPE = "union_tag_not_found", "union_tag_invalid"
_NO_TABLE = ("model_type", "model_attributes_type", "dict_type")
_NO_LIST = ("tuple_type", "list_type")
_LONGEST = 80
_HIDDEN = "***"


def explain(error: ValidationError, known: Iterable[str], *, where: str) -> str:
    """Every fault of the values in the table `where`, whose valid keys are `known`."""
    return "; ".join(_explain(fault, list(known), where) for fault in error.errors())


def fault_text(fault: ErrorDetails, key: str, tables: Sequence[type[BaseModel]] = ()) -> str:
    """One fault of a known key; `tables` are the configs that may stand there."""
    kind, value, context = fault["type"], fault["input"], fault.get("ctx", {})
    if kind in _MISSING:
        return f"{key} is required and not set"
    types = _types(tables) or re.findall(r"'([^']*)'", context.get("expected_tags", ""))
    if kind in _NO_TABLE or (kind == _NO_TYPE and not isinstance(value, Mapping)):
        return f"{key} = {shown(value)}: a table is expected; {_as_table(key, value, types, tables)}"
    if kind == _NO_TYPE:
        return f"{key}.type is not set; {_one_of(f'{key}.type', types)}"
    if kind == _WRONG_TYPE:
        tag = context["tag"]
        return f"{key}.type = {tag!r}: there is no such type; {_one_of(f'{key}.type', types, tag)}"
    if kind in _NO_LIST:
        return f"{key} = {shown(value)}: a list is expected{_as_list(key, value)}"
    text = _HIDDEN if isinstance(context.get("error"), SecretError) else shown(value)
    message = fault["msg"].removeprefix("Value error, ")
    return f"{key} = {text}: {message}" if key else message


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


def _as_table(key: str, value: Any, types: Sequence[str], tables: Sequence[type[BaseModel]]) -> str:
    """How to write as a table what was written as a value."""
    if types:
        return _one_of(f"{key}.type", types, value)
    fields = {name: field for table in tables for name, field in table.model_fields.items()}
    in_a_list = key.rpartition(".")[2].isdigit()
    if isinstance(value, str) and "name" in fields:
        return f"write {{name = {json.dumps(value)}}}" if in_a_list else f"write `{key}.name = {json.dumps(value)}`"
    if not fields:
        return "write `key = value` for each of its keys"
    has_defaults = not in_a_list and not any(field.is_required() for field in fields.values())
    defaults = f", and `{key} = {{}}` takes their defaults" if has_defaults else ""
    return f"its keys are {', '.join(fields)}{defaults}"


def _one_of(key: str, types: Sequence[str], given: object = None) -> str:
    listing = f"set `{key}` to one of {', '.join(types)}" if types else f"set `{key}`"
    if given in types:
        return f"write `{key} = {json.dumps(given)}`"
    near = difflib.get_close_matches(given.lower(), types, n=1, cutoff=0.5) if isinstance(given, str) else []
    return f"did you mean `{key} = {json.dumps(near[0])}`? Or {listing}" if near else listing


def _as_list(key: str, value: Any) -> str:
    if isinstance(value, int | float):
        return f"; write it as [{value}]"
    if isinstance(value, Mapping):
        return "; put the table into brackets, [{...}]"
    if not isinstance(value, str) or first_secret(value) is not None:
        return ""
    items = [item.strip(" '\"") for item in value.strip(" []()").split(",")]
    written = json.dumps([item for item in items if item])
    return f"; write it as {written}, and after --set in quotes: '{key}={written}'"


def _types(tables: Sequence[type[BaseModel]]) -> list[str]:
    """What `type` may be, where it tells several tables apart."""
    if len(tables) < 2:
        return []
    named = [get_args(table.model_fields["type"].annotation) for table in tables if "type" in table.model_fields]
    return list(dict.fromkeys(str(name) for names in named for name in names))


def shown(value: object) -> str:
    """A value in a message: not too long, and without passwords."""
    if first_secret(value) is not None:
        return _HIDDEN
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
