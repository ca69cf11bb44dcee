"""`draw_on_image`: lines, boxes, circles and words on a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentfly_lib.errors import ImageError
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.image_shelf import CALL_SECONDS, Number, edited
from agentfly_lib.tools.tool import tool

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Shape", "draw_on_image"]

Colour = Literal["red", "green", "blue", "yellow", "black", "white", "magenta", "cyan"]


class Shape(BaseModel):
    """Something to draw."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["line", "box", "circle", "text"]
    x: int
    """Where it begins, in pixels from the left; the centre of a circle."""
    y: int
    to_x: int | None = None
    """Where a line or a box ends; of a circle, a point on it."""
    to_y: int | None = None
    text: Annotated[str, Field(max_length=100)] = ""
    colour: Colour = "red"


@tool(timeout=CALL_SECONDS)
async def draw_on_image(
    shapes: Annotated[list[Shape], Field(min_length=1, max_length=32)], context: ToolContext, picture: Number = 0
) -> ToolResult:
    """Draw on a picture, to mark or measure what is on it.

    Args:
        shapes: What to draw: lines and boxes from (x, y) to (to_x, to_y), circles around (x, y) through (to_x, to_y),
            texts at (x, y).
        picture: Which one, counted from 1 in the order that you saw them; 0 is the newest.
    """
    from PIL import ImageDraw

    def drawn(image: Image) -> Image:
        draw = ImageDraw.Draw(image)
        width = max(1, round(max(image.size) / 200))
        for number, shape in enumerate(shapes, start=1):
            _draw(draw, shape, image.size, width, f"shape {number}")
        return image

    return await edited(context, picture, drawn)


def _draw(draw: Any, shape: Shape, size: tuple[int, int], width: int, which: str) -> None:
    points = [(shape.x, shape.y), (shape.to_x, shape.to_y)] if shape.kind != "text" else [(shape.x, shape.y)]
    for x, y in points:
        if x is None or y is None:
            raise ImageError(f"{which}: a {shape.kind} needs to_x and to_y")
        if not (0 <= x < size[0] and 0 <= y < size[1]):
            raise ImageError(f"{which}: ({x}, {y}) is not in the picture, which is {size[0]} x {size[1]} pixels")
    (x, y), (to_x, to_y) = points[0], points[-1]
    match shape.kind:
        case "line":
            draw.line([x, y, to_x, to_y], fill=shape.colour, width=width)
        case "box":
            draw.rectangle([min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y)], outline=shape.colour, width=width)
        case "circle":
            radius = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
            draw.ellipse([x - radius, y - radius, x + radius, y + radius], outline=shape.colour, width=width)
        case "text":
            draw.text((x, y), shape.text, fill=shape.colour)
