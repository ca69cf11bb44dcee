"""A reply as the template would write it: what a policy that has learnt the format samples. For checks and examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentfly_lib.chat.blocks import REASONING_START
from agentfly_lib.chat.format import ChatFormat
from agentfly_lib.types import Message

__all__ = ["calling", "written_reply"]


def calling(chat: ChatFormat, name: str, arguments: Mapping[str, Any], *, call_id: str) -> Message:
    """An assistant's message with one call, in the form that the template takes."""
    given = json.dumps(dict(arguments), ensure_ascii=False) if chat.arguments_as_text else dict(arguments)
    function = {"name": name, "arguments": given}
    return {
        "role": "assistant",
        "content": None if chat.arguments_as_text else "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def written_reply(
    chat: ChatFormat, history: Sequence[Message], message: Message, tools: Sequence[Mapping[str, Any]] | None = None
) -> str | None:
    """The text of `message` behind `history`, without what ends the turn; None if the template writes nothing of it.

    Raises `ModelError` if the template refuses the conversation.
    """
    before = chat.render(history, tools)
    closed = chat.render([*history, message], tools, generation_prompt=False)
    if not closed.startswith(before):
        before = before[: before.rfind(REASONING_START)] if REASONING_START in before else before
    if not closed.startswith(before):
        before = chat.render(history, tools, generation_prompt=False)
    if not closed.startswith(before):
        return None
    text = closed[len(before) :]
    ends = [text.rfind(chat.decode([stop], end_of_turn=True)) for stop in chat.stop_token_ids]
    text = text[: max(ends)] if max(ends) >= 0 else text
    return text if text.strip() else None
