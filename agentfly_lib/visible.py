"""Text from outside, such that a terminal shows it and does nothing else: what a model, a dataset or a file says."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["visible", "without_data"]

_DATA_URL = re.compile(r"data:([\w.+-]{0,60}/[\w.+-]{0,60})?[^,\s\"'<>()]{0,60},[A-Za-z0-9+/=_%.~-]{64,}")
"""An address that carries its contents, once they are too long to be read by a person."""


def visible(text: str) -> str:
    """Control characters as the pictures that Unicode has for them, except line ends and tabs; never half a pair."""
    return "".join(
        character
        if character in "\n\t" or character.isprintable() or not _controls(character)
        else chr(0x2400 + ord(character))
        if ord(character) < 0x20
        else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def _controls(character: str) -> bool:
    code = ord(character)
    return (
        code < 0x20
        or 0x7F <= code < 0xA0
        or 0x202A <= code <= 0x202E  # these two change the direction of what follows
        or 0x2066 <= code <= 0x2069
        or 0xD800 <= code <= 0xDFFF  # half a surrogate pair, which no terminal can be sent
    )


def without_data(value: Any) -> Any:
    """The same text, list or mapping with every long `data:` URL in it replaced by what it holds and its length."""
    match value:
        case str():
            return _DATA_URL.sub(_mark, value) if "data:" in value else value
        case list() | tuple():
            return [without_data(item) for item in value]
        case dict():
            return {name: without_data(item) for name, item in value.items()}
        case _:
            return value


def _mark(found: re.Match[str]) -> str:
    return f"[{found.group(1) or 'data'}, {len(found.group()):,} characters]"
