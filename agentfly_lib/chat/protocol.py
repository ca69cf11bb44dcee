"""Between a conversation as our agents keep it, calls written in replies, and OpenAI's chat protocol, calls in fields.

Out: calls are taken out of earlier replies by the parser of the model's format. In: calls that a server gives are
written into the reply as the model's own template writes them, so that the agent's parser finds them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentfly_lib.chat.blocks import REASONING_START
from agentfly_lib.chat.history import orphans_to_users, take_apart
from agentfly_lib.chat.image_protocol import with_images
from agentfly_lib.chat.parsers import get_parser
from agentfly_lib.chat.pictures import without_images
from agentfly_lib.errors import ModelError
from agentfly_lib.types import Message

__all__ = ["ServedFormat", "protocol_messages", "reply_text"]

_KEYS = ("role", "content", "tool_calls", "tool_call_id")

Tools = Sequence[Mapping[str, Any]]


class ServedFormat(Protocol):
    """What is needed of the format of a model that a server serves. A `ChatFormat` is one."""

    @property
    def parser(self) -> str: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def prompt_ids(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, end_of_turn: bool = False) -> str: ...


def protocol_messages(
    messages: Sequence[Message], tools: Tools, format: ServedFormat, pictures: Sequence[bytes] = ()
) -> list[Message]:
    """The conversation as the protocol wants it. Without tools, calls are an agent's own affair and stay text.

    pictures: those that the messages show. Raises `ValueError` if one is missing.
    """
    apart = take_apart(messages, get_parser(format.parser, tools), arguments_as_text=True) if tools else messages
    converted: list[Message] = []
    turn = 0
    for message in orphans_to_users(apart):
        kept = {key: message[key] for key in _KEYS if key in message}
        if message.get("role") == "assistant":
            turn += 1
            calls = [{**call, "id": f"{turn}-{call['id']}"} for call in message.get("tool_calls", ())]
            kept |= {"tool_calls": calls} if calls else {}
        elif message.get("role") == "tool":
            kept["tool_call_id"] = f"{turn}-{message.get('tool_call_id')}"  # ours are unique within a turn only
        converted.append(kept)
    return with_images(converted, pictures)


def reply_text(reply: Mapping[str, Any], messages: Sequence[Message], tools: Tools, format: ServedFormat) -> str:
    """A server's reply as the text that the model would have written.

    Calls that the template cannot write, or that its parser would not find again, are written as Hermes blocks.
    """
    content, calls = str(reply.get("content") or ""), list(reply.get("tool_calls") or ())
    if not calls:
        return content
    functions = [call["function"] for call in calls]
    written = _by_template(content, functions, messages, tools, format)
    if written is not None and len(get_parser(format.parser, tools).parse(written).calls) == len(calls):
        return written
    blocks = [
        f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}\n</tool_call>'
        for function in functions
    ]
    return "\n".join([content, *blocks] if content else blocks)


def _by_template(
    content: str,
    functions: Sequence[Mapping[str, Any]],
    messages: Sequence[Message],
    tools: Tools,
    format: ServedFormat,
) -> str | None:
    """What the template writes for the reply: the prompt with it goes on from the prompt without it."""
    messages = without_images(messages)
    try:
        calls = [
            {
                "id": f"call{number:05}",
                "type": "function",
                "function": {"name": function["name"], "arguments": json.loads(function["arguments"])},
            }
            for number, function in enumerate(functions)
        ]
        reply = {"role": "assistant", "content": content, "tool_calls": calls}
        before = format.decode(format.prompt_ids(messages, tools), end_of_turn=True)
        after = format.decode(format.prompt_ids([*messages, reply], tools), end_of_turn=True)
    except (ValueError, ModelError):
        return None
    if not after.startswith(before):  # a prompt may open the reasoning, which an earlier reply does not show
        before = before.rstrip().removesuffix(REASONING_START)
    if not after.startswith(before):
        return None
    rest = after[len(before) :]
    stops = [format.decode([stop], end_of_turn=True) for stop in format.stop_token_ids]
    return rest[: min((place for stop in stops if stop and (place := rest.find(stop)) >= 0), default=len(rest))].strip()
