"""Calls that are JSON: read exactly, or refused with a message that names the culprit.

Formats differ in what surrounds the object and in the name of its arguments key; faults are the same everywhere.
Nothing is repaired or coerced.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["JsonCall", "Refused", "json_end", "load_json", "read_arguments", "show"]

MAX_DEPTH = 60
"""Lists and objects inside each other. Python's own limit is near enough that validating or rendering would meet it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"\s*")
_decoder = json.JSONDecoder(strict=True)
_WINDOW = 1024
_ESCAPE_LENGTH = 12
"""Characters of the longest thing that an end of the text may cut in two, a pair of escapes."""


class Refused(ValueError):
    """Why a call cannot be executed: the message for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCall:
    """How a format writes a call as one JSON object."""

    arguments_keys: tuple[str, ...] = ("arguments",)
    """Names that the arguments may have; the first is the one that the model is told."""
    optional: frozenset[str] = frozenset()
    """Keys that may stand beside name and arguments."""

    @property
    def expected(self) -> str:
        return f'{{"name": "<tool>", "{self.arguments_keys[0]}": {{...}}}}'

    def read(self, raw: str) -> tuple[str, dict[str, Any]]:
        """Name and arguments. Raises `Refused`."""
        value = load_json(raw, expected=self.expected)
        key = self.arguments_keys[0]
        if not isinstance(value, dict):
            raise Refused(f"The tool call is a JSON {_kind(value)}, expected an object: {self.expected}.")
        if "name" not in value:
            raise Refused(f'The tool call has no "name" ({_keys(value)}), expected {self.expected}.')
        name = value["name"]
        if not isinstance(name, str) or not name:
            raise Refused(f'"name" of the tool call must be the name of a tool, got {show(name)}.')
        given = [each for each in self.arguments_keys if each in value]
        if not given:
            raise Refused(
                f'The call of {name} has no "{key}" ({_keys(value)}), expected {self.expected}; '
                f'write "{key}": {{}} for a tool that takes none.'
            )
        if len(given) > 1:
            raise Refused(f'The call of {name} has both "{given[0]}" and "{given[1]}", expected only one of them.')
        arguments = value[given[0]]
        if not isinstance(arguments, dict):
            raise Refused(f'"{given[0]}" of the call of {name} must be a JSON object, got a {_kind(arguments)}.')
        extra = sorted(value.keys() - {"name", given[0]} - self.optional)
        if extra:
            raise Refused(f"The call of {name} has the unknown key {show(extra[0])}, expected only name and {key}.")
        return name, arguments


def read_arguments(raw: str, name: str) -> dict[str, Any]:
    """The arguments of a call whose name stands elsewhere. Raises `Refused`."""
    value = load_json(raw, expected=f"the arguments of {name} as a JSON object")
    if not isinstance(value, dict):
        raise Refused(f"The arguments of {name} must be a JSON object, got a {_kind(value)}.")
    return value


def load_json(raw: str, *, expected: str) -> Any:
    """A JSON value without duplicate keys, numbers that are not finite, or characters that cannot be encoded.

    Raises `Refused`.
    """
    try:
        value = json.loads(raw, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        near = raw[max(0, error.pos - 15) : error.pos + 15]
        raise Refused(
            f"The tool call is not valid JSON: {error.msg} at character {error.pos}"
            + (f", near {show(near)}" if near else "")
            + f". Expected {expected}."
        ) from error
    except RecursionError as error:
        raise Refused("The tool call is nested too deeply to be read.") from error
    except Refused:
        raise
    except ValueError as error:
        raise Refused("The tool call holds a number that is too long to be read.") from error
    if not _is_shallow(value):
        raise Refused("The tool call is nested too deeply to be read.")
    # Half of a surrogate pair is legal in JSON's \u notation and is no character: nothing could encode it again.
    if "\\u" in raw and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise Refused("The tool call holds a \\u escape that is half of a pair and stands for no character.")
    return value


def json_end(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` (after white space) ends; None if there is no complete one."""
    space = _SPACE.match(text, start)
    begin = start if space is None else space.end()
    size = _WINDOW
    # A decoder's error counts the lines before it: read in growing pieces, a failure costs what was read and no more.
    while True:
        piece = text[begin : begin + size]
        whole = begin + size >= len(text)
        try:
            _, end = _decoder.raw_decode(piece)
        except json.JSONDecodeError as error:
            cut = error.pos > len(piece) - _ESCAPE_LENGTH or error.msg.startswith("Unterminated string")
            if whole or not cut:
                return None
        except (ValueError, RecursionError):
            return None
        else:
            if whole or end < len(piece):
                return begin + end
        size *= 4


def show(value: Any) -> str:
    """A value as it is quoted to the model: JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise Refused(f"The tool call has the key {show(key)} twice.")
        result[key] = value
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Refused(f"The tool call holds {text[:40]}, which is too large for a number.")
    return number


def _no_constant(text: str) -> Any:
    raise Refused(f"The tool call holds {text}, which is not a JSON number.")


def _is_shallow(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return True
    return False


def _kind(value: Any) -> str:
    kinds: tuple[tuple[type, str], ...] = ((bool, "boolean"), (str, "string"), (list, "list"), (dict, "object"))
    for kind, name in kinds:
        if isinstance(value, kind):
            return name
    return "null" if value is None else "number"


def _keys(value: dict[str, Any]) -> str:
    return f"its keys: {', '.join(map(show, value))}" if value else "it is empty"
