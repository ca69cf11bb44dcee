"""Pictures of a conversation in OpenAI's protocol: `image_url` parts that hold them.

The protocol has no pictures in tool results. Those of a turn's results go into a message of the user behind them, and
a mark in each result says which they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentfly_lib.chat.images import data_url, digest_of, load_picture
from agentfly_lib.errors import ImageError
from agentfly_lib.types import Message

__all__ = ["protocol_image", "with_images"]


def protocol_image(data: bytes) -> dict[str, Any]:
    """The part that shows the picture of an image file."""
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def with_images(messages: Sequence[Message], pictures: Sequence[bytes]) -> list[Message]:
    """The messages as the protocol wants them; `pictures` are those that they name by their digest, in any order.

    Raises `ValueError` for a picture that is not there or cannot be used.
    """
    known = {digest_of(data): data for data in pictures}
    converted: list[Message] = []
    waiting: list[dict[str, Any]] = []
    for message in messages:
        if waiting and message.get("role") != "tool":
            converted.append(_seen(waiting))
            waiting = []
        content = message.get("content")
        if not isinstance(content, list):
            converted.append(message)
            continue
        parts = [_part(part, known) for part in content]
        if message.get("role") == "tool":
            parts = _without(parts, waiting)
        converted.append({**message, "content": parts})
    return [*converted, _seen(waiting)] if waiting else converted


def _part(part: Any, known: Mapping[str, bytes]) -> Any:
    if not isinstance(part, Mapping) or part.get("type") != "image":
        return part
    digest = part.get("digest")
    if digest is None:
        try:
            return protocol_image(load_picture(part.get("image")).data)
        except ImageError as error:
            raise ValueError(str(error)) from error
    if digest not in known:
        raise ValueError(f"the conversation refers to the picture {digest[:12]}..., which the request does not have")
    return protocol_image(known[digest])


def _without(parts: Sequence[Any], waiting: list[dict[str, Any]]) -> list[Any]:
    """The parts of a tool result, its pictures moved to those that wait for a message of the user."""
    kept: list[Any] = []
    for part in parts:
        if isinstance(part, Mapping) and part.get("type") == "image_url":
            waiting.append(dict(part))
            kept.append({"type": "text", "text": f"[image {len(waiting)}, shown below]"})
        else:
            kept.append(part)
    return kept


def _seen(images: Sequence[dict[str, Any]]) -> Message:
    word = "image" if len(images) == 1 else f"{len(images)} images"
    return {"role": "user", "content": [{"type": "text", "text": f"The {word} of the results:"}, *images]}
