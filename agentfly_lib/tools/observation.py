"""From whatever a tool returned to what the model sees."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from agentfly_lib.tools.call import ToolResult
from agentfly_lib.tools.images import image_texts

__all__ = ["cut", "to_result", "yielded"]

MAX_ITEMS = 1_000
"""Of a generator: it may have no end."""
_NOTHING = "(no output)"


def to_result(value: Any) -> ToolResult:
    """Any return value as a result.

    A dict with the key `observation` is taken apart (`reward`, `finished` or `done`, `error`, `answer`, `image` or
    `images`; other keys are the tool's own business); other structured values become JSON; what a generator yields is
    put one below the other; None says that there was no output.

    Raises `ValueError` or `TypeError` for a reward that is not finite, or an image that is none.
    """
    if isinstance(value, ToolResult):
        reward = None if value.env_reward is None else _finite(value.env_reward)
        return dataclasses.replace(
            value,
            observation=_text(value.observation),
            env_reward=reward,
            images=image_texts(value.images),
            answer=None if value.answer is None else _text(value.answer),
        )
    if isinstance(value, Mapping) and "observation" in value:
        reward, error, answer = value.get("reward"), value.get("error"), value.get("answer")
        return ToolResult(
            observation=_text(value["observation"]),
            finished=bool(value.get("finished", value.get("done", False))),
            env_reward=None if reward is None else _finite(reward),
            error=None if error is None else _text(error),
            images=image_texts(_images(value)),
            answer=None if answer is None else _text(answer),
        )
    text = _text(value)
    return ToolResult(observation=text, answer=text)


async def yielded(items: AsyncIterator[Any]) -> Iterator[Any]:
    """What an asynchronous generator yields, as an ordinary iterator: no more of it than `to_result` looks at."""
    found: list[Any] = []
    async for item in items:
        found.append(item)
        if len(found) > MAX_ITEMS:
            break
    return iter(found)


def cut(text: str, max_chars: int) -> str:
    """At most `max_chars` characters of a text, with a mark that says how many are missing."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[{len(text) - max_chars} more characters were cut]"


def _images(value: Mapping[Any, Any]) -> tuple[Any, ...]:
    """One under `image`, several under `images`; a None is none."""
    image, images = value.get("image"), value.get("images")
    several = () if images is None else images if isinstance(images, list | tuple) else (images,)
    return tuple(item for item in (image, *several) if item is not None)


def _text(value: Any) -> str:
    # Half surrogates, which tools may return, could not be encoded as tokens or written to a shard.
    return _spelled(value).encode("utf-8", "replace").decode("utf-8")


def _spelled(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, Iterator):
        return _joined(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return f"({len(value)} bytes that are not text)"
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping | list | tuple):
        try:
            return json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError):
            return str(value)
    return str(value)


def _joined(items: Iterator[Any]) -> str:
    """The items of a generator, of which one that has no end is not asked for all."""
    texts: list[str] = []
    for item in items:
        if len(texts) == MAX_ITEMS:
            texts.append(f"[more than {MAX_ITEMS} items]")
            break
        texts.append(_spelled(item))
    return "\n".join(texts) or _NOTHING


def _finite(reward: Any) -> float:
    number = float(reward)
    if not math.isfinite(number):
        raise ValueError(f"the tool's reward is {number}, which is not a finite number")
    return number
