"""What parsers share: a reply is text with blocks of calls in it, and each format says what a block looks like.

A format is a pattern that opens a block and a function that reads one. From these come both ways of parsing: a whole
reply (`BlockParser.parse`) and a reply as it is sampled (`chat.stream_parser`), which must agree. A block says whether
more text could still change it (`settled`); only that makes streaming possible without guessing.

Reasoning between `<think>` and `</think>` at the start of a reply is not searched: a call that a model thinks about is
no call. Its opening tag may stand in the prompt. Reasoning that never ends hides nothing, and neither does a closing
tag inside a call.

A reply is hostile: the time to read one grows with its length alone, whatever is in it. Of its calls, `MAX_CALLS` are
read; what comes after them is one refused call more.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import regex

from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall
from agentfly_lib.chat.json_call import Refused

__all__ = [
    "LINE_START",
    "MAX_CALLS",
    "MAX_PARAMETERS",
    "REASONING_END",
    "REASONING_START",
    "Attempt",
    "Block",
    "BlockParser",
    "CallParser",
    "after_reasoning",
    "attempt",
    "skip_space",
]

REASONING_START = "<think>"
REASONING_END = "</think>"
MAX_CALLS = 128
"""Calls of a reply that are read."""
MAX_PARAMETERS = 256
"""Of a call, in formats that write them one by one."""
LINE_START = r"(?:(?m:^)|(?<=</think>))[ \t]*"
"""Pattern of where a call may begin that nothing but its own brackets opens."""
_SPACE = re.compile(r"\s*")
_TOO_MANY = f"A reply may hold {MAX_CALLS} tool calls, so those that came after them were not executed."


class CallParser(Protocol):
    """Takes replies apart. Stateless, and safe to share."""

    def parse(self, text: str) -> ParsedReply:
        """Content and calls of a whole reply. A call whose end is missing is refused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One call of a block, read or refused."""

    raw: str
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None
    """The message for the model if it cannot be executed."""
    id: str = ""
    """What the model calls it, if it does and that can be an id in this format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What an opening opened."""

    end: int
    """Index after the block."""
    attempts: tuple[Attempt, ...] = ()
    reasoning: str = ""
    settled: bool = False
    """Whatever text may follow, this block stays as it is. False is always safe: a stream then waits for the end."""


class BlockParser(ABC):
    """A format's parser: a pattern and a reader."""

    __slots__ = ()

    opening: ClassVar[regex.Pattern[str]]
    """Matches what begins a block."""
    has_think_tags: ClassVar[bool] = True
    """Whether `<think>` tags may stand before the answer."""

    @abstractmethod
    def block(self, text: str, start: int, end: int) -> Block:
        """Reads the block whose opening is `text[start:end]`."""

    @staticmethod
    def call_id(index: int) -> str:
        """Id of a reply's call, from 0."""
        return f"call-{index}"

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart. A call that is not closed is refused, whatever else is wrong or right with it."""
        position = self.answer_start(text)
        outside, reasoning, attempts = [text[:position]], list[str](), list[Attempt]()
        for start, block in self._blocks(text, position):
            outside.append(text[position:start])
            position = block.end
            attempts += block.attempts
            reasoning.append(block.reasoning)
        outside.append(text[position:])
        return ParsedReply(
            content="".join(outside).strip(),
            calls=self._calls(attempts),
            reasoning="\n".join(filter(None, reasoning)),
        )

    def answer_start(self, text: str) -> int:
        """Index after the reasoning that `text` begins with."""
        return after_reasoning(text, self.opening) if self.has_think_tags else 0

    def _blocks(self, text: str, position: int) -> Iterator[tuple[int, Block]]:
        read = 0
        while (found := self.opening.search(text, position)) is not None:
            if read > MAX_CALLS:
                yield found.start(), Block(end=len(text))
                return
            block = self.block(text, found.start(), found.end())
            read += len(block.attempts)
            yield found.start(), block
            position = block.end

    def _calls(self, attempts: Sequence[Attempt]) -> tuple[ToolCall | MalformedCall, ...]:
        calls, taken = list[ToolCall | MalformedCall](), set[str]()
        for index, each in enumerate(attempts):
            if index == MAX_CALLS:
                calls.append(MalformedCall(id=self.call_id(index), raw=each.raw, message=_TOO_MANY))
                break
            call_id = each.id if each.id and each.id not in taken else self.call_id(index)
            taken.add(call_id)
            if each.fault is not None:
                calls.append(MalformedCall(id=call_id, raw=each.raw, message=each.fault))
            else:
                calls.append(ToolCall(id=call_id, name=each.name, arguments=each.arguments))
        return tuple(calls)


def after_reasoning(text: str, opening: regex.Pattern[str]) -> int:
    """Index after the reasoning that `text` begins with; `opening` matches what begins a call."""
    end = text.find(REASONING_END)
    if end < 0:
        return 0
    if not text.lstrip().startswith(REASONING_START):
        call = opening.search(text)
        if call is not None and call.start() < end:
            return 0
    return end + len(REASONING_END)


def attempt(raw: str, read: Callable[[], tuple[str, Mapping[str, Any]]], *, id: str = "") -> Attempt:
    """What `read` gives, or its refusal."""
    try:
        name, arguments = read()
    except Refused as refusal:
        return Attempt(raw=raw, fault=str(refusal), id=id)
    return Attempt(raw=raw, name=name, arguments=arguments, id=id)


def skip_space(text: str, position: int) -> int:
    """Index of the next character that is no white space."""
    space = _SPACE.match(text, position)
    return position if space is None else space.end()
