"""Images of tool results as text, which messages and shards can carry: an address, or a `data:` URL that holds it."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentfly_lib.chat.images import load_picture
from agentfly_lib.errors import ImageError

__all__ = ["MAX_IMAGES", "data_url", "image_texts"]

MAX_IMAGES = 16
"""Of one result."""
MAX_BYTES = 20 * 2**20
"""Of one image."""
_KINDS = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"BM", "bmp"))


def image_texts(images: Iterable[Any]) -> tuple[str, ...]:
    """Each image as a text. Takes `Path`s, bytes of an image file, PIL images, arrays of pixels [H, W, 3], and text: a
    `data:` URL, or what is left to whoever shows it (a text that names a file or an address may come from the model).

    Raises `ValueError` or `TypeError` for what is no image, or for more than can be shown.
    """
    texts: list[str] = []
    for image in images:
        if len(texts) == MAX_IMAGES:
            raise ValueError(f"the result has more than {MAX_IMAGES} images")
        texts.append(_text(image))
    return tuple(texts)


def data_url(data: bytes) -> str:
    """The bytes of an image file as a URL. Raises `ValueError` if they are too many, or no image that we know."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"the result has an image of {len(data)} bytes; the limit is {MAX_BYTES}")
    return f"data:image/{_kind(data)};base64,{base64.b64encode(data).decode()}"


def _text(image: Any) -> str:
    if isinstance(image, str):
        if len(image) > 2 * MAX_BYTES:
            raise ValueError(f"the result has an image of {len(image)} characters; the limit is {2 * MAX_BYTES}")
        return image
    if isinstance(image, os.PathLike):
        return _of_file(Path(image))
    if isinstance(image, bytes | bytearray | memoryview):
        return data_url(bytes(image))
    if hasattr(image, "__array_interface__") and not hasattr(image, "save"):
        from PIL import Image

        image = Image.fromarray(image)
    if not (hasattr(image, "save") and hasattr(image, "size")):
        raise TypeError(f"the result has a {type(image).__name__} where an image should be")
    file = io.BytesIO()
    image.save(file, format="PNG")
    return data_url(file.getvalue())


def _of_file(path: Path) -> str:
    try:
        return data_url(load_picture(path).data)
    except ImageError as error:
        raise ValueError(f"the result has an image that cannot be used: {error}") from error


def _kind(data: bytes) -> str:
    for magic, kind in _KINDS:
        if data.startswith(magic):
            return kind
    if data[8:12] == b"WEBP":
        return "webp"
    raise ValueError(f"the result has an image of {len(data)} bytes that is not a PNG, JPEG, GIF, WEBP or BMP")
