"""Replies of earlier turns, taken apart for templates that want reasoning, content and calls each in its own place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentfly_lib.chat.blocks import REASONING_END, REASONING_START, BlockParser
from agentfly_lib.chat.calls import ToolCall
from agentfly_lib.types import Message

__all__ = ["orphans_to_users", "take_apart"]

_NO_NAME = "invalid"
"""Stands for the name of a call that could not be read."""


def take_apart(messages: Sequence[Message], parser: BlockParser, *, arguments_as_text: bool = False) -> list[Message]:
    """The same conversation, message by message, with the replies as such templates want them.

    `arguments_as_text` gives arguments as JSON text rather than as objects, which some templates want.
    """
    return [
        _reply(message["content"], message, parser, arguments_as_text)
        if message.get("role") == "assistant"
        and isinstance(message.get("content"), str)
        and not message.get("tool_calls")
        else message
        for message in messages
    ]


def orphans_to_users(messages: Sequence[Message]) -> list[Message]:
    """Tool results that answer no call (of an agent with a format of its own) as messages of the user."""
    result = list[Message]()
    answers_a_call = False
    for message in messages:
        if message.get("role") != "tool":
            answers_a_call = bool(message.get("tool_calls"))
        is_orphan = message.get("role") == "tool" and not answers_a_call
        result.append({"role": "user", "content": message.get("content")} if is_orphan else message)
    return result


def _reply(text: str, message: Message, parser: BlockParser, arguments_as_text: bool) -> Message:
    start = parser.answer_start(text)
    parsed = parser.parse(text[start:])
    thought = parsed.reasoning or text[:start].strip().removeprefix(REASONING_START).removesuffix(REASONING_END).strip()
    content = parsed.content
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name if isinstance(call, ToolCall) else _NO_NAME,
                "arguments": _arguments(dict(call.arguments) if isinstance(call, ToolCall) else {}, arguments_as_text),
            },
        }
        for call in parsed.calls
    ]
    if calls and thought and content and not parser.has_think_tags:
        thought, content = f"{thought}\n{content}", ""  # templates of channels write one of them beside a call
    taken: dict[str, Any] = {key: value for key, value in message.items() if key != "content"}
    taken["content"] = content or (None if calls else "")
    if thought:
        taken |= {"reasoning_content": thought, "thinking": thought}
    if calls:
        taken["tool_calls"] = calls
    return taken


def _arguments(arguments: dict[str, Any], as_text: bool) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if as_text else arguments
