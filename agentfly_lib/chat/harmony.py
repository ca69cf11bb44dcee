"""Replies of gpt-oss: messages in channels (the harmony format).

    <|channel|>analysis<|message|>I need a calculator.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.calculator <|constrain|>json<|message|>{"x": 2}<|call|>

`analysis` is reasoning, `final` is the answer, and a message to `functions.NAME` is a call. `commentary` to nobody is
said to the user, so it is content. A message ends at the next control token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import Attempt, Block, BlockParser, attempt
from agentfly_lib.chat.json_call import Refused, json_end, read_arguments, show

__all__ = ["HarmonyParser"]

_TOKENS = r"<\|(?:start|end|message|channel|constrain|return|call)\|>"
_MESSAGE = "<|message|>"
_HEADER = regex.compile(r"(?:<\|start\|>)?+(?:[^<]|<\|channel\|>|<\|constrain\|>)*+")
"""What may stand before `<|message|>`."""
_CHANNEL = regex.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = regex.compile(r"\bto=([^\s<]+)")
_END = regex.compile(_TOKENS)
_CLOSED = ("<|call|>", "<|end|>", "<|return|>")


@dataclass(frozen=True, slots=True)
class HarmonyParser(BlockParser):
    """Takes a reply apart by its channels."""

    opening: ClassVar[regex.Pattern[str]] = regex.compile(rf"{_TOKENS}|\A\s*to=")
    """A reply whose recipient stands before its channel begins in the middle of a header."""
    has_think_tags: ClassVar[bool] = False

    def block(self, text: str, start: int, end: int) -> Block:
        if text.startswith(_CLOSED, start):
            return Block(end=end, settled=True)
        header = _HEADER.match(text, start)
        head = header.end() if header is not None else start
        if not text.startswith(_MESSAGE, head):
            return _cut_header(text, start, max(head, end))
        begin = head + len(_MESSAGE)
        recipient = _RECIPIENT.search(text, start, head)
        channel = _CHANNEL.search(text, start, head)
        if recipient is not None and recipient[1] != "assistant":
            return _call(text, begin, recipient[1])
        if channel is not None and channel[1] == "analysis":
            closing = _END.search(text, begin)
            stop = closing.start() if closing else len(text)
            return Block(end=stop, reasoning=text[begin:stop].strip(), settled=closing is not None)
        return Block(end=begin, settled=True)  # what follows is content


def _cut_header(text: str, start: int, end: int) -> Block:
    """A message without a body: a stray token, or a header that was cut, which goes up to `end` at least."""
    following = _END.search(text, end)
    stop = following.start() if following else len(text)
    recipient = _RECIPIENT.search(text, start, stop)
    if recipient is None:
        return Block(end=stop)
    fault = f"The call of {recipient[1]} has no <|message|> with its arguments, so it was not executed."
    return Block(end=stop, attempts=(Attempt(raw=text[start:stop], fault=fault),))


def _call(text: str, begin: int, recipient: str) -> Block:
    """A message to a tool. A control token inside a string of the arguments is part of the string."""
    body = json_end(text, begin)
    closing = _END.search(text, body or begin)
    if body is not None and closing is not None and text[body : closing.start()].strip():
        closing = _END.search(text, begin)
    stop = closing.start() if closing is not None else len(text)
    after = closing.end() if closing is not None and closing[0] in _CLOSED else stop
    raw = text[begin:stop]
    return Block(
        end=after, attempts=(attempt(raw, lambda: _read(raw, recipient)),), settled=body is not None and after > stop
    )


def _read(raw: str, recipient: str) -> tuple[str, dict[str, Any]]:
    name = recipient.removeprefix("functions.")
    if not name:
        raise Refused(f"The recipient {show(recipient)} names no tool, expected functions.NAME.")
    return name, read_arguments(raw.strip(), name)
