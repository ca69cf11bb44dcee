"""The pictures that a trajectory's image tools work on: the problem's own, and behind them what the tools have made.

They are counted from 1 in the order in which the model saw them; 0 is the newest. A picture of a few megabytes takes
hundreds when it is worked on, so that only few of all trajectories' are at the same time.
"""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentfly_lib.bounded import call_in_thread
from agentfly_lib.chat.images import Picture, load_picture
from agentfly_lib.errors import ImageError
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.sandbox import one_at_a_time

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["CALL_SECONDS", "MAX_SIDE", "Number", "edited"]

CALL_SECONDS = 60.0
"""Limit of a call: it may have to wait for others."""
MAX_PICTURES = 64
"""Of a trajectory."""
MAX_SIDE = 2048
"""Of what a tool makes."""
Number = Annotated[int, Field(ge=0, le=MAX_PICTURES)]
"""Which picture."""
_STATE = "image_shelf"
_places = threading.BoundedSemaphore(4)
"""Of this process, for pictures that are worked on."""
_COLUMNS = ("image", "images", "picture")


async def edited(context: ToolContext, number: int, edit: Callable[[Image], Image]) -> ToolResult:
    """What `edit` makes of a picture in RGB: shown to the model, and from then on a picture of the trajectory.

    Calls of one trajectory come one after the other, in their order. Raises `ImageError` if there is no picture of that
    number or no room for another, and what `edit` raises.
    """
    async with one_at_a_time(context, _STATE):
        if _STATE not in context.state:
            context.state[_STATE] = await call_in_thread(functools.partial(_own, context))
        shelf: list[Picture] = context.state[_STATE]
        if not shelf:
            raise ImageError("there is no picture to work on")
        if number > len(shelf):
            raise ImageError(
                f"there is no picture {number}; there are {len(shelf)}, counted from 1, and 0 is the newest"
            )
        if len(shelf) == MAX_PICTURES:
            raise ImageError(f"there are {MAX_PICTURES} pictures already; no more are made")
        # The thread may outlive the call, so that the shelf is not its business.
        picture = await call_in_thread(functools.partial(_made, shelf[number - 1], edit))
        shelf.append(picture)
        size = f"{picture.width} x {picture.height} pixels"
        return ToolResult(observation=f"This is picture {len(shelf)}, {size}.", images=(picture.data,))


def _own(context: ToolContext) -> list[Picture]:
    with _places:
        return [load_picture(source) for source in _sources(context)][:MAX_PICTURES]


def _made(picture: Picture, edit: Callable[[Image], Image]) -> Picture:
    from PIL import Image

    with _places:
        return load_picture(edit(Image.open(io.BytesIO(picture.data)).convert("RGB")))


def _sources(context: ToolContext) -> list[Any]:
    sources: list[Any] = []
    for name in _COLUMNS:
        value = context.problem.columns.get(name)
        sources += value if isinstance(value, list | tuple) else [] if value is None else [value]
    for message in context.problem.messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else ()
        sources += [part["image"] for part in parts if part.get("type") == "image" and "image" in part]
    return sources
