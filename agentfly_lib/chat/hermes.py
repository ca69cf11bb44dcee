"""Tool calls in the Hermes style, which Qwen and many others are trained on:

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "2 + 3"}}
    </tool_call>

The JSON object is read by a JSON decoder from the opening tag on, so a closing tag inside a string argument ends
nothing. Whatever opens a call and is not a complete, valid one becomes a `MalformedCall` whose message tells the model
what was wrong; nothing is repaired, coerced or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import Block, BlockParser, attempt, skip_space
from agentfly_lib.chat.json_call import JsonCall, Refused, json_end

__all__ = ["HermesParser"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_NEXT = regex.compile(r"</?tool_call>")
_SHAPE = JsonCall()


@dataclass(frozen=True, slots=True)
class HermesParser(BlockParser):
    """Finds `<tool_call>` blocks in a reply."""

    opening: ClassVar[regex.Pattern[str]] = regex.compile(regex.escape(_OPEN))

    def block(self, text: str, start: int, end: int) -> Block:
        body_end, after, closed, settled = _body(text, end)
        raw = text[end:body_end]
        return Block(end=after, attempts=(attempt(raw, lambda: _read(raw, closed)),), settled=settled)


def _body(text: str, start: int) -> tuple[int, int, bool, bool]:
    """Where the body ends, where to go on searching, whether the call was closed, and whether that is certain."""
    end = json_end(text, start)
    if end is not None:
        close = skip_space(text, end)
        if text.startswith(_CLOSE, close):
            return end, close + len(_CLOSE), True, True
    following = _NEXT.search(text, end or start)
    if following is not None and following[0] == _CLOSE:
        return following.start(), following.end(), True, False
    stop = following.start() if following is not None else len(text)
    return stop, stop, False, False


def _read(raw: str, closed: bool) -> tuple[str, dict[str, Any]]:
    if not closed:
        raise Refused(f"The tool call is not closed: {_CLOSE} is missing, so it was not executed.")
    return _SHAPE.read(raw.strip())
