"""Generated pictures: stable, distinct, of the colour that the answer says, and shown by `look` alone."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from agentfly_lib.configs import ColoursDataConfig
from agentfly_lib.data.colours import COLOURS, PICTURE_SIZE, generate
from agentfly_lib.data.prepare import load_problems, prepare_dataset
from agentfly_lib.tools import ToolContext
from agentfly_lib.tools.images import data_url
from agentfly_lib.tools.look import look
from agentfly_lib.types import Problem


def test_the_stream_is_stable_and_its_pictures_are_distinct() -> None:
    problems = generate(seed=3, count=200)

    assert problems[:50] == generate(seed=3, count=50)
    assert len({problem.picture for problem in problems}) == 200
    assert generate(seed=4, count=50) != problems[:50]


def test_the_middle_of_a_picture_has_the_colour_of_the_answer() -> None:
    for problem in generate(seed=0, count=100):
        with Image.open(io.BytesIO(problem.picture)) as picture:
            assert (picture.size, picture.mode) == ((PICTURE_SIZE, PICTURE_SIZE), "RGB")
            counts: dict[tuple[int, int, int], int] = {}
            for _, pixel in picture.getcolors() or ():
                assert isinstance(pixel, tuple)
                counts[pixel] = 1  # pyright: ignore[reportArgumentType]
        assert len(counts) == 2, "a square on its background"
        nearest = {
            name: min(max(abs(a - b) for a, b in zip(pixel, colour, strict=True)) for pixel in counts)
            for name, colour in COLOURS.items()
        }
        assert nearest[problem.answer] <= 15


def test_problems_have_the_picture_in_a_column_and_not_in_the_prompt(tmp_path: Path) -> None:
    config = ColoursDataConfig(train_problems=20, eval_problems=10)

    ref = prepare_dataset(config, tmp_path)

    assert (ref.train_rows, ref.eval_rows, ref.columns) == (20, 10, ("answer", "picture"))
    held_out = list(load_problems(ref, "eval"))
    expected = generate(seed=0, count=10)
    assert {problem.columns["picture"] for problem in held_out} == {data_url(each.picture) for each in expected}
    assert all("data:" not in str(problem.messages) for problem in held_out)


def test_look_shows_the_picture_of_its_problem() -> None:
    shown = look(context=_context(picture="data:image/png;base64,AAAA"))
    nothing = look(context=_context())

    assert (shown.images, shown.observation, shown.error) == (("data:image/png;base64,AAAA",), "", None)
    assert nothing.error is not None
    assert nothing.images == ()
    assert look.parameters.get("properties", {}) == {}, "the model passes nothing"


def _context(**columns: str) -> ToolContext:
    return ToolContext(trajectory_id="t", group_id="g", problem=Problem(id="p", messages=(), columns=columns))
