"""`rotate_image`: a picture, turned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.image_shelf import CALL_SECONDS, MAX_SIDE, Number, edited
from agentfly_lib.tools.tool import tool

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["rotate_image"]


@tool(timeout=CALL_SECONDS)
async def rotate_image(
    degrees: Annotated[float, Field(ge=-360, le=360)], context: ToolContext, picture: Number = 0
) -> ToolResult:
    """Turn a picture clockwise; corners that become free are white.

    Args:
        degrees: How far; less than 0 turns it the other way.
        picture: Which one, counted from 1 in the order that you saw them; 0 is the newest.
    """
    from PIL.Image import Resampling

    def turned(image: Image) -> Image:
        image.thumbnail((MAX_SIDE, MAX_SIDE))  # the turned one needs up to twice the pixels
        return image.rotate(-degrees, Resampling.BICUBIC, expand=True, fillcolor=(255, 255, 255))

    return await edited(context, picture, turned)
