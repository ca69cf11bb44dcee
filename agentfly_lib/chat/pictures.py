"""The pictures of one conversation: taken out of its messages, which from then on name them.

    {"type": "image", "image": <bytes, a data: URL, ...>}   becomes   {"type": "image", "digest": "<SHA-256>"}

So messages stay small and are JSON whatever they show, and a picture that is shown twice is kept once. Parts of
OpenAI's form (`image_url`) are taken too, and a `video` as the pictures of its frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentfly_lib.chat.images import NO_ACCESS, ImageAccess, Picture, data_url, load_picture
from agentfly_lib.errors import ImageError
from agentfly_lib.types import Message

__all__ = ["MAX_FRAMES", "PictureBook", "image_part", "shown", "with_files", "without_images"]

MAX_FRAMES = 64
"""Of a video."""
_SOURCES = ("image", "url", "path", "base64", "image_url")


class PictureBook(Mapping[str, Picture]):
    """Digest -> picture."""

    def __init__(self, pictures: Mapping[str, Picture] | None = None) -> None:
        self._pictures: dict[str, Picture] = dict(pictures or {})

    def __getitem__(self, digest: str) -> Picture:
        return self._pictures[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pictures)

    def __len__(self) -> int:
        return len(self._pictures)

    @property
    def files(self) -> dict[str, bytes]:
        """Digest -> encoded file, as trajectories keep them."""
        return {digest: picture.data for digest, picture in self._pictures.items()}

    def take(
        self, messages: Iterable[Message], *, access: ImageAccess = NO_ACCESS, forgiving: bool = False
    ) -> tuple[list[Message], int]:
        """The messages with their pictures named, and how many of these cannot be used.

        Such a picture is an error, or, if `forgiving`, a text in its place that says why. Raises `ImageError`.
        """
        failed = 0
        taken: list[Message] = []
        for message in messages:
            content = message.get("content")
            if not isinstance(content, list) or not any(map(_is_visual, content)):
                taken.append(message)
                continue
            parts: list[Any] = []
            for part in content:
                if not _is_visual(part):
                    parts.append(part)
                    continue
                try:
                    parts += self._take(part, access)
                except ImageError as error:
                    if not forgiving:
                        raise
                    failed += 1
                    parts.append({"type": "text", "text": f"[An image was left out: {error}]"})
            taken.append({**message, "content": parts})
        return taken, failed

    def add(self, picture: Picture) -> dict[str, str]:
        """Keeps a picture; returns the part of a message that shows it."""
        self._pictures.setdefault(picture.digest, picture)
        return image_part(picture.digest)

    def _take(self, part: Mapping[str, Any], access: ImageAccess) -> list[dict[str, str]]:
        if part.get("type") == "video":
            frames = part.get("video")
            if not isinstance(frames, Sequence) or isinstance(frames, str | bytes | bytearray):
                raise ImageError("a video is given as the list of its frames")
            if not 0 < len(frames) <= MAX_FRAMES:
                raise ImageError(f"a video has 1 to {MAX_FRAMES} frames, this one {len(frames)}; leave some out")
            loaded = [load_picture(frame, access=access) for frame in frames]
            return [self.add(picture) for picture in loaded]
        digest = part.get("digest")
        if digest is not None:
            if digest not in self._pictures:
                raise ImageError(f"there is no picture {str(digest)[:12]}...")
            return [image_part(digest)]
        return [self.add(load_picture(_source(part), access=access))]


def image_part(digest: str) -> dict[str, str]:
    """The part of a message's content that shows a picture."""
    return {"type": "image", "digest": digest}


def shown(messages: Iterable[Message]) -> list[str]:
    """Digests of the pictures that messages show, in order."""
    return [
        part["digest"]
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, Mapping) and part.get("type") == "image" and "digest" in part
    ]


def with_files(messages: Iterable[Message], files: Mapping[str, bytes]) -> list[Message]:
    """The messages of a trajectory for those who do not have its pictures: parts hold them, as `data:` URLs."""

    def held(part: Any) -> Any:
        digest = part.get("digest") if _is_visual(part) else None
        if isinstance(digest, str) and digest in files:
            return {"type": "image", "image": data_url(files[digest])}
        return part

    return [
        {**message, "content": [held(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def without_images(messages: Iterable[Message]) -> list[Message]:
    """The messages with their texts alone."""
    return [
        {**message, "content": [part for part in message["content"] if not _is_visual(part)]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _is_visual(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url", "video")


def _source(part: Mapping[str, Any]) -> Any:
    for name in _SOURCES:
        if (source := part.get(name)) is not None:
            if name == "image_url" and isinstance(source, Mapping):
                source = source.get("url")
            return source
    raise ImageError(f"an image part needs one of the keys {', '.join(_SOURCES)}, and this one has none")
