"""The pictures that a trajectory's image tools work on: the problem's own, and behind them what the tools have made.

They are counted from 1 in the order in which the model saw them; 0 is the newest.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentfly_lib.chat.images import Picture, load_picture
from agentfly_lib.errors import ImageError
from agentfly_lib.tools.call import ToolContext, ToolResult

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MAX_SIDE", "Number", "edited", "opened"]

MAX_PICTURES = 64
"""Of a trajectory."""
MAX_SIDE = 2048
"""Of what a tool makes."""
Number = Annotated[int, Field(ge=0, le=MAX_PICTURES)]
"""Which picture."""
_STATE = "image_shelf"
_COLUMNS = ("image", "images", "picture")


def opened(context: ToolContext, number: int) -> Image:
    """A picture of the trajectory, in RGB. Raises `ImageError` if there is none of that number."""
    from PIL import Image

    shelf = _shelf(context)
    if not shelf:
        raise ImageError("there is no picture to work on")
    if number > len(shelf):
        raise ImageError(f"there is no picture {number}; there are {len(shelf)}, counted from 1, and 0 is the newest")
    return Image.open(io.BytesIO(shelf[number - 1].data)).convert("RGB")


def edited(context: ToolContext, image: Image) -> ToolResult:
    """What a tool has made: shown to the model, and from then on a picture of the trajectory. Raises `ImageError`."""
    shelf = _shelf(context)
    if len(shelf) == MAX_PICTURES:
        raise ImageError(f"there are {MAX_PICTURES} pictures already; no more are made")
    picture = load_picture(image)
    shelf.append(picture)
    size = f"{picture.width} x {picture.height} pixels"
    return ToolResult(observation=f"This is picture {len(shelf)}, {size}.", images=(picture.data,))


def _shelf(context: ToolContext) -> list[Picture]:
    if _STATE not in context.state:
        context.state[_STATE] = [load_picture(source) for source in _sources(context)][:MAX_PICTURES]
    return context.state[_STATE]


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
