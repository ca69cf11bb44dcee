"""The pictures of a conversation: found by their digest, sent with the type that their bytes have, and no other.

Only raster images are shown. What a file is called, or says of itself, decides nothing: SVG and HTML can carry scripts,
and are never sent as a picture.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from typing import Any

from agentfly_lib.types import Message, TrajectoryGroup

__all__ = ["data_url", "image_type", "message_pictures", "pictures_of"]

_MOST_BYTES = 16 << 20
"""Of one picture that stands in a message."""


def image_type(data: bytes) -> str | None:
    """Media type of a raster image by its first bytes; None for everything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def data_url(data: bytes) -> str | None:
    """A picture as an address that carries it; None for what is no raster image."""
    kind = image_type(data)
    return None if kind is None else f"data:{kind};base64,{base64.b64encode(data).decode()}"


def message_pictures(message: Message, known: dict[str, bytes]) -> dict[str, bytes]:
    """The pictures that a message shows, by digest: named by a digest of `known`, or written out as a `data:` URL."""
    found: dict[str, bytes] = {}
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and "text" not in part:
            for text in _texts(part):
                if text in known:
                    found[text] = known[text]
                elif (data := _from_data_url(text)) is not None:
                    found[hashlib.sha256(data).hexdigest()] = data
    return found


def pictures_of(group: TrajectoryGroup) -> dict[str, bytes]:
    """Every picture of a group, by digest."""
    found = {digest: data for each in group.trajectories for digest, data in each.pictures.items()}
    messages = [*group.problem.messages, *(m for each in group.trajectories for m in each.messages)]
    for message in messages:
        found |= message_pictures(message, found)
    return found


def _texts(value: Any) -> Iterator[str]:
    """Texts in a part of a message, which nests them once or not at all."""
    for item in value.values():
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from (text for text in item.values() if isinstance(text, str))


def _from_data_url(text: str) -> bytes | None:
    head, comma, body = text.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")) or len(body) > 2 * _MOST_BYTES:
        return None
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if image_type(data) is not None else None
