"""Pictures of a coloured square, generated: a visual task of two turns, from no file, the same everywhere for a seed.

The question asks for the square's colour; the picture is not in it, but in the column `picture`, as a `data:` URL of a
PNG, which the tool `look` shows. So an answer can be right by looking, or by luck. Pictures differ in colour, shade,
size and place, and are distinct. The stream is stable: held-out problems are its head, training problems what follows.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from agentfly_lib.configs.data import ColoursDataConfig

__all__ = ["COLOURS", "PICTURE_SIZE", "QUESTION", "ColourProblem", "generate", "train_and_held_out"]

QUESTION = "Which colour is the square? Use the look tool."
PICTURE_SIZE = 32
"""Pixels of a picture's sides."""
COLOURS: MappingProxyType[str, tuple[int, int, int]] = MappingProxyType(
    {
        "red": (220, 30, 30),
        "green": (30, 180, 30),
        "blue": (40, 60, 230),
        "yellow": (230, 220, 40),
        "white": (240, 240, 240),
        "black": (15, 15, 15),
    }
)
_BACKGROUND = (120, 120, 120)
_SHADE = 15
"""Largest difference of a channel from its colour."""
_SIDES = (14, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColourProblem:
    """One picture and what is on it."""

    picture: bytes
    """A PNG of `PICTURE_SIZE` x `PICTURE_SIZE` pixels."""
    answer: str
    """A name of `COLOURS`."""


def generate(*, seed: int, count: int) -> list[ColourProblem]:
    """`count` problems with distinct pictures: a pure function of the arguments, and a prefix of any longer list."""
    return list(islice(_distinct(seed), count))


def train_and_held_out(config: ColoursDataConfig) -> tuple[list[ColourProblem], list[ColourProblem]]:
    """Training and held-out problems, disjoint."""
    problems = generate(seed=config.seed, count=config.eval_problems + config.train_problems)
    return problems[config.eval_problems :], problems[: config.eval_problems]


def _distinct(seed: int) -> Iterator[ColourProblem]:
    draws, seen = random.Random(seed), set[tuple[object, ...]]()
    while True:
        answer = draws.choice(list(COLOURS))
        side = draws.randint(*_SIDES)
        left, top = (draws.randint(0, PICTURE_SIZE - side) for _ in range(2))
        red, green, blue = (min(255, max(0, part + draws.randint(-_SHADE, _SHADE))) for part in COLOURS[answer])
        looks = (side, left, top, red, green, blue)
        if looks not in seen:
            seen.add(looks)
            yield ColourProblem(picture=_drawn(side, left, top, (red, green, blue)), answer=answer)


def _drawn(side: int, left: int, top: int, colour: tuple[int, int, int]) -> bytes:
    from PIL import Image

    picture = Image.new("RGB", (PICTURE_SIZE, PICTURE_SIZE), _BACKGROUND)
    picture.paste(colour, (left, top, left + side, top + side))
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()
