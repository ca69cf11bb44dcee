"""Arithmetic word problems of one or two steps, generated: no file, no network, the same everywhere for a seed.

Every one-step kind is `x op y`; every two-step kind is `x op y op z`, evaluated from left to right (which is also what
the usual precedence gives, because a product only stands first). No problem has a negative result on the way.
Questions are distinct, and the stream is stable: asking for more problems gives the same ones first. Held-out problems
are the head of the stream, training problems what follows, so that more training data never changes the evaluation.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from agentfly_lib.configs.data import ArithmeticDataConfig
from agentfly_lib.errors import DataError

__all__ = ["WordProblem", "generate", "held_out", "train_and_held_out"]

NAMES = ("Tom", "Mia", "Ben", "Zoe", "Sam", "Eva", "Max", "Lea")
ITEMS = ("apples", "coins", "books", "pens", "eggs", "cards", "shells", "stamps")
MAX_FACTOR = 9
"""Largest second factor of a product."""

# A short vocabulary on purpose: the small model's tokenizer is learnt from these sentences.
_ONE_STEP = (
    ("{a} has {x} {items}. {a} finds {y} more {items}. How many {items} does {a} have?", "+"),
    ("{a} has {x} {items} and {b} has {y} {items}. How many {items} in total?", "+"),
    ("{a} has {x} {items}. {a} gives {y} {items} to {b}. How many {items} are left?", "-"),
    ("{a} has {x} {items} and {b} has {y} {items}. How many more does {a} have?", "-"),
    ("There are {x} boxes with {y} {items} each. How many {items} in total?", "*"),
    ("{a} buys {x} {items} at {y} dollars each. How much does {a} pay?", "*"),
)
_TWO_STEP = (
    ("{a} has {x} {items}. {a} finds {y} more, then gives {z} {items} to {b}. How many {items} are left?", "+-"),
    ("{a} has {x} boxes with {y} {items} each and {z} more {items}. How many {items} in total?", "*+"),
    ("{a} has {x} boxes with {y} {items} each. {a} gives {z} {items} to {b}. How many {items} are left?", "*-"),
    ("{a} has {x} {items}. {a} loses {y} {items}, then finds {z} more. How many {items} does {a} have?", "-+"),
)
_OPERATIONS: MappingProxyType[str, Callable[[int, int], int]] = MappingProxyType(
    {"+": operator.add, "-": operator.sub, "*": operator.mul}
)
_TRIES_PER_PROBLEM = 200
"""Draws in a row that may repeat a known question before we conclude that there are no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordProblem:
    """`numbers[0] operators[0] numbers[1] ...`, told in words."""

    question: str
    answer: str
    """The result, as digits."""
    numbers: tuple[int, ...]
    operators: tuple[str, ...]
    """`+`, `-` or `*`, one fewer than `numbers`."""


def generate(*, seed: int, count: int, max_number: int, two_step_fraction: float = 0.0) -> list[WordProblem]:
    """`count` problems with distinct questions: a pure function of the arguments, and a prefix of any longer list.

    Numbers are at least 2 (the last one of a two-step problem at least 1) and at most `max_number`; the second factor
    of a product is at most 9. Raises `DataError` if there are not that many distinct problems.
    """
    return list(itertools.islice(_distinct(seed, max_number, two_step_fraction), count))


def held_out(config: ArithmeticDataConfig) -> list[WordProblem]:
    """The held-out problems of a dataset; they do not depend on the number of training problems."""
    return generate(
        seed=config.seed,
        count=config.eval_problems,
        max_number=config.max_number,
        two_step_fraction=config.two_step_fraction,
    )


def train_and_held_out(config: ArithmeticDataConfig) -> tuple[list[WordProblem], list[WordProblem]]:
    """Training and held-out problems, disjoint."""
    problems = generate(
        seed=config.seed,
        count=config.eval_problems + config.train_problems,
        max_number=config.max_number,
        two_step_fraction=config.two_step_fraction,
    )
    return problems[config.eval_problems :], problems[: config.eval_problems]


def _distinct(seed: int, max_number: int, two_step_fraction: float) -> Iterator[WordProblem]:
    draws, seen, repeats = random.Random(seed), set[str](), 0
    while True:
        problem = _draw(draws, max_number, two_step_fraction)
        if problem.question not in seen:
            seen.add(problem.question)
            repeats = 0
            yield problem
        elif (repeats := repeats + 1) > _TRIES_PER_PROBLEM:
            raise DataError(
                f"there are hardly more than {len(seen)} distinct problems with numbers up to {max_number}; "
                "raise data.max_number or ask for fewer problems"
            )


def _draw(draws: random.Random, max_number: int, two_step_fraction: float) -> WordProblem:
    template, operators = draws.choice(_TWO_STEP if draws.random() < two_step_fraction else _ONE_STEP)
    first_name, second_name = draws.sample(NAMES, 2)
    items = draws.choice(ITEMS)
    x, y, z = (draws.randint(2, max_number) for _ in range(3))
    if operators[0] == "*":
        y = draws.randint(2, MAX_FACTOR)
    if operators[0] == "-" and y > x:
        x, y = y, x
    result = _OPERATIONS[operators[0]](x, y)
    numbers: tuple[int, ...] = (x, y)
    if len(operators) == 2:
        if operators[1] == "-":
            z = draws.randint(1, min(max_number, result))
        result = _OPERATIONS[operators[1]](result, z)
        numbers = (x, y, z)
    return WordProblem(
        question=template.format(a=first_name, b=second_name, items=items, x=x, y=y, z=z),
        answer=str(result),
        numbers=numbers,
        operators=tuple(operators),
    )
