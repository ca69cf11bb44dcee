"""`zoom_image`: a picture around a point, larger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from agentfly_lib.errors import ImageError
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.image_shelf import CALL_SECONDS, MAX_SIDE, Number, edited
from agentfly_lib.tools.tool import tool

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["zoom_image"]


@tool(timeout=CALL_SECONDS)
async def zoom_image(
    x: int, y: int, context: ToolContext, factor: Annotated[float, Field(gt=1, le=16)] = 2.0, picture: Number = 0
) -> ToolResult:
    """Look closer at a place in a picture.

    Args:
        x: The place, in pixels from the left.
        y: The place, in pixels from the top.
        factor: How many times larger it is to be.
        picture: Which one, counted from 1 in the order that you saw them; 0 is the newest.
    """
    from PIL.Image import Resampling

    def zoomed(image: Image) -> Image:
        if not (0 <= x < image.width and 0 <= y < image.height):
            raise ImageError(f"({x}, {y}) is not in the picture, which is {image.width} x {image.height} pixels")
        width, height = (max(1, round(side / factor)) for side in image.size)
        left = min(max(0, x - width // 2), image.width - width)
        top = min(max(0, y - height // 2), image.height - height)
        scale = min(factor, MAX_SIDE / max(width, height))
        size = max(1, round(width * scale)), max(1, round(height * scale))
        return image.crop((left, top, left + width, top + height)).resize(size, Resampling.BICUBIC)

    return await edited(context, picture, zoomed)
