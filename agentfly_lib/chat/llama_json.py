"""Tool calls of Llama 3.1 and later as JSON, several separated by semicolons:

    {"name": "calculator", "parameters": {"expression": "2 + 3"}}; {"name": ...}

Nothing but the braces opens such a call. It is one where an object begins a line of the reply (or follows
`<|python_tag|>`) and its first key is one of a call; JSON that answers a question in another shape stays text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import LINE_START, Attempt, Block, BlockParser, attempt, skip_space
from agentfly_lib.chat.json_call import JsonCall, Refused, json_end

__all__ = ["LlamaJsonParser"]

_TAG = "<|python_tag|>"
_SHAPE = JsonCall(arguments_keys=("parameters", "arguments"), optional=frozenset({"type"}))
_KEY = r'\{\s*"(?:name|parameters|arguments|type"\s*:\s*"function)"'


@dataclass(frozen=True, slots=True)
class LlamaJsonParser(BlockParser):
    """Finds JSON calls in a reply."""

    opening: ClassVar[regex.Pattern[str]] = regex.compile(rf"<\|python_tag\|>|{LINE_START}{_KEY}")

    def block(self, text: str, start: int, end: int) -> Block:
        position = end if text.startswith(_TAG, start) else skip_space(text, start)
        attempts = list[Attempt]()
        while (after := json_end(text, position)) is not None:
            raw = text[position:after].strip()
            attempts.append(attempt(raw, lambda raw=raw: _SHAPE.read(raw)))
            separator = skip_space(text, after)
            if not text.startswith(";", separator):
                # White space may still be followed by a semicolon and another call.
                return Block(end=after, attempts=tuple(attempts), settled=separator < len(text))
            position = skip_space(text, separator + 1)
            if not text.startswith("{", position):
                return Block(end=separator + 1, attempts=tuple(attempts), settled=position < len(text))
        raw = text[position:]
        attempts.append(attempt(raw, lambda: _refuse(raw)))
        return Block(end=len(text), attempts=tuple(attempts))


def _refuse(raw: str) -> tuple[str, dict[str, Any]]:
    _SHAPE.read(raw.strip())
    raise Refused(f"The tool call cannot be read, expected {_SHAPE.expected}.")
