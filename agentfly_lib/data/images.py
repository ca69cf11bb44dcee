"""The columns `image` and `images`, and image parts of messages: checked while a dataset is prepared, and from then on
held by the rows themselves as `data:` URLs.

A picture is given as a path (relative to the data file, and below its folder or one that the config names), an address
of a host that the config names, a `data:` URL, or bytes, bare or as `datasets` keeps them (`bytes` and `path`). A text
that looks like none of these is left alone: in other datasets `image` is the name of a container's image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentfly_lib.chat.images import ImageAccess, data_url, load_picture
from agentfly_lib.chat.pictures import MAX_FRAMES
from agentfly_lib.configs.data import ImageSourcesConfig
from agentfly_lib.errors import ImageError
from agentfly_lib.rows.picture_text import IMAGE_COLUMNS
from agentfly_lib.rows.sources import Row, read_rows
from agentfly_lib.tools.fetch_image import image_fetcher

__all__ = ["held_images", "held_parts", "image_access", "image_files_sha256"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".svg", ".tif", ".tiff", ".heic", ".avif", ".ico")


def image_access(config: ImageSourcesConfig, *folders: Path) -> ImageAccess:
    """What texts of a dataset may name: files below the folders and the config's, addresses of the config's hosts."""
    return ImageAccess(folders=(*folders, *config.folders), fetch=image_fetcher(config.hosts))


def held_images(values: Mapping[str, Any], access: ImageAccess) -> dict[str, Any]:
    """A row whose image columns hold their pictures as `data:` URLs. Raises `ImageError` naming the column."""
    held = dict(values)
    for name in IMAGE_COLUMNS:
        if name in held:
            held[name] = _held(held[name], access, name)
    return held


def held_parts(content: list[Any], access: ImageAccess) -> list[Any]:
    """The parts of a message's content, image parts with `data:` URLs. Raises `ImageError`."""
    parts: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "video" and isinstance(part.get("video"), list):
            if len(part["video"]) > MAX_FRAMES:
                raise ImageError(f"a video of {len(part['video'])} frames; the limit is {MAX_FRAMES}")
            parts += [_part(frame, access) for frame in part["video"]]
        elif kind == "image_url" and isinstance(part.get("image_url"), Mapping):
            parts.append(_part(part["image_url"].get("url"), access))
        elif kind == "image":
            named = next((part[key] for key in ("image", "url", "path", "base64") if part.get(key) is not None), None)
            parts.append(_part(named, access))
        else:
            parts.append(part)
    return parts


def image_files_sha256(path: Path, access: ImageAccess) -> str | None:
    """Hash over the files that the rows of a data file name in image columns; None if it names none.

    Files that are not there count as nothing here: reading the rows will say so.
    """
    if not _mentions_images(path):
        return None
    digest, any_file = hashlib.sha256(), False
    for row in read_rows(path):
        if not isinstance(row, Row):
            continue
        for text in _named(row.values):
            try:
                data = load_picture(text, access=ImageAccess(folders=access.folders)).data
            except ImageError:
                continue
            digest.update(f"{text}\0{hashlib.sha256(data).hexdigest()}\n".encode("utf-8", "surrogatepass"))
            any_file = True
    return digest.hexdigest() if any_file else None


def _held(value: Any, access: ImageAccess, column: str) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_held(each, access, f"{column}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, str) and not _names_a_picture(value):
        return value
    try:
        return _url(value, access)
    except ImageError as error:
        raise ImageError(f"column {column!r}: {error}") from error


def _part(source: Any, access: ImageAccess) -> dict[str, str]:
    if source is None:
        raise ImageError("an image part needs the key `image`, and this one has none")
    return {"type": "image", "image": _url(source, access)}


def _url(source: Any, access: ImageAccess) -> str:
    return data_url(load_picture(source, access=access).data)


def _names_a_picture(text: str) -> bool:
    lower = text[:4096].lower()
    return lower.startswith(("data:", "http://", "https://", "file://")) or lower.endswith(_SUFFIXES)


def _named(values: Mapping[str, Any]) -> Iterator[str]:
    """Paths in the image columns of a row, and in the image parts of its conversation."""
    for name in IMAGE_COLUMNS:
        value = values.get(name)
        for each in value if isinstance(value, list) else [value]:
            text = each.get("path") if isinstance(each, Mapping) and each.get("bytes") is None else each
            if isinstance(text, str) and _names_a_picture(text) and not _is_address(text):
                yield text
    for message in values.get("messages") or () if isinstance(values.get("messages"), list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            named = part.get("image") or part.get("path") if isinstance(part, Mapping) else None
            if isinstance(named, str) and not _is_address(named):
                yield named


def _is_address(text: str) -> bool:
    return text[:8].lower().startswith(("data:", "http://", "https://"))


def _mentions_images(path: Path) -> bool:
    """Whether the bytes of the file hold the word at all, as they do in every format where a column bears the name."""
    tail = b""
    try:
        with path.open("rb") as file:
            while block := file.read(2**20):
                if b"image" in tail + block:
                    return True
                tail = block[-8:]
    except OSError:
        return False
    return False
