"""The pictures that a problem brings, in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentfly_lib.types import Message, Problem

__all__ = ["with_images_of"]


def with_images_of(problem: Problem, messages: Sequence[Message]) -> list[Message]:
    """The pictures of the columns `image` and `images` as parts before the text of the first user message.

    A message that has parts already says itself what it shows, and stays.
    """
    messages, images = list(messages), _images(problem)
    first = next((index for index, message in enumerate(messages) if message.get("role") == "user"), None)
    if not images or first is None or isinstance(messages[first]["content"], list):
        return messages
    text = {"type": "text", "text": messages[first]["content"]}
    parts = [*({"type": "image", "image": image} for image in images), text]
    return [*messages[:first], {**messages[first], "content": parts}, *messages[first + 1 :]]


def _images(problem: Problem) -> list[Any]:
    found: list[Any] = []
    for name in ("image", "images"):
        value = problem.columns.get(name)
        found += value if isinstance(value, list | tuple) else [] if value is None else [value]
    return found
