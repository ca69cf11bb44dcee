"""Tool calls of DeepSeek's models, between special tokens. R1 and V3 write the first form, V3.1 and later the second:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator
```json
{"expression": "2 + 3"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>calculator<｜tool▁sep｜>{"x": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import Block, BlockParser, attempt, skip_space
from agentfly_lib.chat.json_call import Refused, json_end, read_arguments

__all__ = ["DeepSeekParser"]

_CALLS_OPEN, _CALLS_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_OPEN, _SEPARATOR, _CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_HEAD = regex.compile(rf"\s*(?:function{_SEPARATOR}\s*([^\s<]*)\s*\n|([^\s<]*){_SEPARATOR})\s*(```json)?\s*")
_FENCE = regex.compile(r"\s*```")
_NEXT = regex.compile("|".join((_CLOSE, _OPEN, _CALLS_CLOSE)))
_EXPECTED = f"{_OPEN}function{_SEPARATOR}NAME, then the arguments as JSON, then {_CLOSE}"


@dataclass(frozen=True, slots=True)
class DeepSeekParser(BlockParser):
    """Finds calls between DeepSeek's special tokens in a reply."""

    opening: ClassVar[regex.Pattern[str]] = regex.compile("|".join((_CALLS_OPEN, _CALLS_CLOSE, _OPEN)))

    def block(self, text: str, start: int, end: int) -> Block:
        if not text.startswith(_OPEN, start):
            return Block(end=end, settled=True)
        head = _HEAD.match(text, end)
        if head is not None and (stop := json_end(text, head.end())) is not None:
            fence = _FENCE.match(text, stop) if head[3] else None
            close = skip_space(text, fence.end() if fence else stop)
            if text.startswith(_CLOSE, close):
                name, raw = head[1] or head[2] or "", text[head.end() : stop]
                return Block(
                    end=close + len(_CLOSE),
                    attempts=(attempt(text[end:close], lambda: (_name(name), read_arguments(raw, name))),),
                    settled=True,
                )
        return _unreadable(text, end, head)


def _unreadable(text: str, begin: int, head: regex.Match[str] | None) -> Block:
    closing = _NEXT.search(text, begin)
    stop = closing.start() if closing is not None else len(text)
    closed = closing is not None and closing[0] == _CLOSE
    raw = text[begin:stop]

    def refuse() -> tuple[str, dict[str, Any]]:
        if not closed:
            raise Refused(f"The tool call is not closed: {_CLOSE} is missing, so it was not executed.")
        if head is None:
            raise Refused(f"The tool call cannot be read, expected {_EXPECTED}.")
        name = _name(head[1] or head[2] or "")
        read_arguments(text[head.end() : stop].strip().removesuffix("```").strip(), name)
        raise Refused(f"The call of {name} cannot be read, expected {_EXPECTED}.")

    return Block(end=stop + len(_CLOSE) if closed else stop, attempts=(attempt(raw, refuse),))


def _name(name: str) -> str:
    if not name:
        raise Refused(f"The tool call names no tool, expected {_EXPECTED}.")
    return name
