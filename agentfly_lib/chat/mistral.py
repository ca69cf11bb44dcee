"""Tool calls of Mistral's models, in both forms:

    [TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "2 + 3"}}, ...]
    [TOOL_CALLS]calculator[ARGS]{"expression": "2 + 3"}[TOOL_CALLS]...

Ids are nine letters and digits, or the templates refuse the conversation: the one that the model writes (`"id"`, or
`[CALL_ID]` in the second form) if it is such an id, else one of ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import Attempt, Block, BlockParser, attempt, skip_space
from agentfly_lib.chat.json_call import JsonCall, Refused, json_end, load_json, read_arguments

__all__ = ["MistralParser"]

_OPEN = "[TOOL_CALLS]"
_SHAPE = JsonCall(optional=frozenset({"id"}))
_NAMED = regex.compile(r"\s*([^\s\[{]*)\s*(?:\[CALL_ID\]\s*(\w*)\s*)?(?:\[ARGS\])?\s*(?=\{)")
_ID = regex.compile(r"[A-Za-z0-9]{9}")
_EXPECTED = f'{_OPEN}[{{"name": "<tool>", "arguments": {{...}}}}]'


@dataclass(frozen=True, slots=True)
class MistralParser(BlockParser):
    """Finds `[TOOL_CALLS]` blocks in a reply."""

    opening: ClassVar[regex.Pattern[str]] = regex.compile(regex.escape(_OPEN))

    @staticmethod
    def call_id(index: int) -> str:
        return f"call{index:05d}"

    def block(self, text: str, start: int, end: int) -> Block:
        begin = skip_space(text, end)
        if text.startswith("[", begin) and not text.startswith(_OPEN, begin):
            return _array(text, begin)
        return _named(text, end)


def _array(text: str, begin: int) -> Block:
    """The first form, item by item, so that each has its own text and its own fault."""
    attempts = list[Attempt]()
    position = skip_space(text, begin + 1)
    while (end := json_end(text, position)) is not None:
        raw = text[position:end].strip()
        attempts.append(_item(raw))
        position = skip_space(text, end)
        if text.startswith("]", position):
            return Block(end=position + 1, attempts=tuple(attempts), settled=True)
        if not text.startswith(",", position):
            break
        position += 1
    stop = _next(text, position)
    raw = text[begin:stop]
    return Block(end=stop, attempts=(attempt(raw, lambda: _refuse_list(raw)),))


def _item(raw: str) -> Attempt:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    return attempt(raw, lambda: _SHAPE.read(raw), id=_id(value.get("id") if isinstance(value, dict) else None))


def _id(written: object) -> str:
    return written if isinstance(written, str) and _ID.fullmatch(written) else ""


def _named(text: str, begin: int) -> Block:
    head = _NAMED.match(text, begin)
    end = json_end(text, head.end()) if head is not None else None
    if head is not None and end is not None:
        raw, name = text[head.end() : end], head[1]
        found = attempt(text[begin:end], lambda: (_name(name), read_arguments(raw, name)), id=_id(head[2]))
        return Block(end=end, attempts=(found,), settled=True)
    stop = _next(text, begin)
    raw = text[begin:stop]
    return Block(end=stop, attempts=(attempt(raw, lambda: _refuse_named(raw, head[1] if head else "")),))


def _name(name: str) -> str:
    if not name:
        raise Refused(f"The tool call names no tool, expected {_EXPECTED}.")
    return name


def _refuse_list(raw: str) -> tuple[str, dict[str, Any]]:
    """Nothing of a list that is broken is executed: it is not known what the model meant."""
    load_json(raw.strip(), expected=_EXPECTED)
    raise Refused(f"The list of calls is empty, expected {_EXPECTED}.")


def _refuse_named(raw: str, name: str) -> tuple[str, dict[str, Any]]:
    if name:
        read_arguments(raw[raw.index("{") :].strip(), name)
    raise Refused(f"The tool call cannot be read, expected {_EXPECTED}.")


def _next(text: str, position: int) -> int:
    found = text.find(_OPEN, position)
    return found if found >= 0 else len(text)
