"""What a parser finds in a reply: calls that can be tried, calls that cannot, and the text around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MalformedCall", "ParsedReply", "ToolCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One well-formed call; whether the tool exists and the arguments fit is decided where it is executed."""

    id: str
    """Unique within its turn, in order of appearance: `call-0`, `call-1`, ... (or as the format wants ids)."""
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedCall:
    """Something that was meant as a call and cannot be executed."""

    id: str
    raw: str
    """The text between the tags, as sampled."""
    message: str
    """What the model is told: the culprit and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A reply taken apart."""

    content: str
    """The text outside the calls, stripped. Reasoning between `<think>` tags is part of it."""
    calls: tuple[ToolCall | MalformedCall, ...] = ()
    """In order of appearance."""
    reasoning: str = ""
    """What the model thought, in formats that have a channel for it; elsewhere it is in `content`."""

    @property
    def answer(self) -> str:
        """The content without the reasoning that it begins with."""
        _, end, said = self.content.partition("</think>")
        return said.strip() if end else self.content
