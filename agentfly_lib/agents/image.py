"""`ImageAgent`: an `HFAgent` for models that see."""

from __future__ import annotations

from typing import Any

from agentfly_lib.agents.hf import HFAgent
from agentfly_lib.types import Message, Problem

__all__ = ["ImageAgent"]


class ImageAgent(HFAgent):
    """Puts the pictures of a problem's column `images` (or `image`) before the text of its first user message."""

    sees = True

    def build_messages(self, problem: Problem) -> list[Message]:
        """The first prompt's conversation, with pictures as content parts."""
        messages = super().build_messages(problem)
        pictures = _pictures(problem)
        first = next((index for index, message in enumerate(messages) if message.get("role") == "user"), None)
        if not pictures or first is None or isinstance(messages[first]["content"], list):
            return messages
        parts = [*({"type": "image", "image": each} for each in pictures), _text(messages[first]["content"])]
        return [*messages[:first], {**messages[first], "content": parts}, *messages[first + 1 :]]


def _pictures(problem: Problem) -> list[Any]:
    found = problem.columns.get("images", problem.columns.get("image"))
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def _text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}
