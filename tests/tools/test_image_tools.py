"""Tools that work on pictures: what they make, what they refuse, which picture they mean."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agentfly_lib.tools import ToolCall, ToolContext, execute_calls
from agentfly_lib.tools.corpus import CorpusProvider
from agentfly_lib.tools.image_shelf import MAX_PICTURES
from agentfly_lib.tools.registry import get_tool
from agentfly_lib.tools.web_search import make_web_search
from agentfly_lib.types import Problem
from tests.chat.vision_models import png


def quarters() -> Image.Image:
    """Red, green / blue, white; each quarter 10 x 10."""
    image = Image.new("RGB", (20, 20), "white")
    for colour, place in (("red", (0, 0)), ("lime", (10, 0)), ("blue", (0, 10))):
        image.paste(Image.new("RGB", (10, 10), colour), place)
    return image


def url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def context(**columns: Any) -> ToolContext:
    return ToolContext(trajectory_id="0/0", group_id="0", problem=Problem(id="p", messages=(), columns=columns))


async def use(where: ToolContext, name: str, **arguments: Any):
    calls = [ToolCall(id="call-0", name=name, arguments=arguments)]
    (result,) = await execute_calls(calls, {name: get_tool(name)}, where, default_timeout=30.0, max_chars=1000)
    return result


def pixels(result) -> np.ndarray:
    (text,) = result.images
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text.partition(",")[2]))))


async def test_crop():
    result = await use(context(image=url(quarters())), "crop_image", left=10, top=0, right=20, bottom=10)
    assert result.observation == "This is picture 2, 10 x 10 pixels."
    assert (pixels(result) == [0, 255, 0]).all()


async def test_zoom_keeps_inside_the_picture():
    result = await use(context(image=url(quarters())), "zoom_image", x=0, y=19, factor=4)
    found = pixels(result)
    assert found.shape == (20, 20, 3)
    assert (found == [0, 0, 255]).all()


async def test_rotate_is_clockwise():
    found = pixels(await use(context(image=url(quarters())), "rotate_image", degrees=90))
    assert found[2, 2].tolist() == [0, 0, 255]
    assert found[2, 17].tolist() == [255, 0, 0]


async def test_draw():
    shapes = [
        {"kind": "box", "x": 2, "y": 2, "to_x": 7, "to_y": 7, "colour": "black"},
        {"kind": "line", "x": 10, "y": 15, "to_x": 19, "to_y": 15, "colour": "magenta"},
    ]
    found = pixels(await use(context(image=url(quarters())), "draw_on_image", shapes=shapes))
    assert found[2, 4].tolist() == [0, 0, 0]
    assert found[4, 4].tolist() == [255, 0, 0]
    assert found[15, 14].tolist() == [255, 0, 255]


async def test_pictures_are_counted_as_they_were_seen_and_the_newest_is_meant_unless_said():
    where = context(images=[url(quarters()), url(Image.new("RGB", (30, 30), "cyan"))])
    assert (await use(where, "crop_image", left=0, top=0, right=30, bottom=5)).observation.startswith(
        "This is picture 3"
    )
    assert (pixels(await use(where, "crop_image", left=0, top=0, right=5, bottom=5)) == [0, 255, 255]).all()
    assert (pixels(await use(where, "crop_image", left=0, top=0, right=5, bottom=5, picture=1)) == [255, 0, 0]).all()


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("crop_image", {"left": 0, "top": 0, "right": 21, "bottom": 5}, "is no rectangle"),
        ("crop_image", {"left": 5, "top": 0, "right": 5, "bottom": 5}, "is no rectangle"),
        ("crop_image", {"left": 0, "top": 0, "right": 5, "bottom": 5, "picture": 9}, "there is no picture 9"),
        ("zoom_image", {"x": 20, "y": 0}, "is not in the picture"),
        ("zoom_image", {"x": 0, "y": 0, "factor": 1000}, "factor"),
        ("rotate_image", {"degrees": 1e9}, "degrees"),
        ("draw_on_image", {"shapes": [{"kind": "line", "x": 0, "y": 0}]}, "needs to_x"),
        ("draw_on_image", {"shapes": [{"kind": "text", "x": 0, "y": 99, "text": "a"}]}, "is not in the picture"),
        ("draw_on_image", {"shapes": [{"kind": "text", "x": 0, "y": 0}] * 33}, "shapes"),
        ("draw_on_image", {"shapes": [{"kind": "text", "x": 0, "y": 0, "colour": "octarine"}]}, "colour"),
    ],
)
async def test_what_cannot_be_done_is_told(name, arguments, fault):
    result = await use(context(image=url(quarters())), name, **arguments)
    assert result.error is not None
    assert fault in result.observation
    assert result.images == ()


async def test_calls_of_one_turn_come_in_their_order_and_few_pictures_are_open_at_once(monkeypatch):
    """Each works on the newest picture: what the call before it has made, however long that took."""
    opened, most = 0, 0

    def slow(self, box):
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        time.sleep(0.02)
        opened -= 1
        return crop(self, box)

    crop = Image.Image.crop
    monkeypatch.setattr(Image.Image, "crop", slow)
    monkeypatch.setattr("agentfly_lib.tools.image_shelf._places", threading.BoundedSemaphore(2))

    async def turn() -> list[str]:
        calls = [
            ToolCall(id=str(side), name="crop_image", arguments={"left": 0, "top": 0, "right": side, "bottom": side})
            for side in range(19, 9, -1)
        ]
        tools = {"crop_image": get_tool("crop_image")}
        where = context(image=url(quarters()))
        results = await execute_calls(calls, tools, where, default_timeout=30.0, max_chars=1000)
        return [result.observation for result in results]

    in_order = [f"This is picture {number}, {21 - number} x {21 - number} pixels." for number in range(2, 12)]
    assert await asyncio.gather(*(turn() for _ in range(4))) == [in_order] * 4
    assert most <= 2


async def test_without_a_picture_there_is_nothing_to_do():
    assert "no picture to work on" in (await use(context(), "rotate_image", degrees=1)).observation


async def test_no_trajectory_makes_pictures_without_end():
    where = context(images=[png(8, 8)] * MAX_PICTURES)
    assert "no more are made" in (await use(where, "rotate_image", degrees=1)).observation


class TestSearch:
    """Captions are searched, and the pictures that they describe come back."""

    @pytest.fixture
    def corpus(self, tmp_path):
        (tmp_path / "red.png").write_bytes(png(8, 8))
        rows = [
            {"text": "a red square", "title": "Red", "image": "red.png"},
            {
                "text": "a blue square",
                "title": "Blue",
                "image": f"data:image/png;base64,{base64.b64encode(png(8, 8, 'blue')).decode()}",
            },
            {"text": "a green story without one"},
            {"text": "a yellow lie", "image": "../../etc/passwd.png"},
        ]
        (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return make_web_search(CorpusProvider(tmp_path / "captions.jsonl"))

    async def found(self, search, query):
        calls = [ToolCall(id="call-0", name="web_search", arguments={"query": query})]
        (result,) = await execute_calls(calls, {"web_search": search}, context(), default_timeout=30.0, max_chars=9999)
        return result

    async def test_hits_bring_their_pictures(self, corpus):
        result = await self.found(corpus, "square")
        assert "[1] Red (with a picture)\na red square" in result.observation
        assert [base64.b64decode(each.partition(",")[2]) for each in result.images] == [png(8, 8), png(8, 8, "blue")]

    async def test_without_a_picture_there_is_text_alone(self, corpus):
        result = await self.found(corpus, "story")
        assert result.images == ()
        assert "with a picture" not in result.observation

    async def test_a_picture_outside_the_corpus_is_not_read(self, corpus):
        result = await self.found(corpus, "yellow lie")
        assert result.images == ()
        assert "there is no image" in str(result.error)
