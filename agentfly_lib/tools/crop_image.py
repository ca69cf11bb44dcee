"""`crop_image`: a part of a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentfly_lib.errors import ImageError
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.image_shelf import CALL_SECONDS, Number, edited
from agentfly_lib.tools.tool import tool

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["crop_image"]


@tool(timeout=CALL_SECONDS)
async def crop_image(
    left: int, top: int, right: int, bottom: int, *, context: ToolContext, picture: Number = 0
) -> ToolResult:
    """Cut a rectangle out of a picture.

    Args:
        left: Its left edge, in pixels from the left.
        top: Its upper edge, in pixels from the top.
        right: The first column that is not in it.
        bottom: The first row that is not in it.
        picture: Which one, counted from 1 in the order that you saw them; 0 is the newest.
    """

    def cropped(image: Image) -> Image:
        if not (0 <= left < right <= image.width and 0 <= top < bottom <= image.height):
            raise ImageError(
                f"[{left}, {top}, {right}, {bottom}] is no rectangle in the picture, which is {image.width} x "
                f"{image.height} pixels"
            )
        return image.crop((left, top, right, bottom))

    return await edited(context, picture, cropped)
