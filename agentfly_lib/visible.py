"""Text from outside, such that a terminal shows it and does nothing else: what a model, a dataset or a file says."""

from __future__ import annotations

__all__ = ["visible"]


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
