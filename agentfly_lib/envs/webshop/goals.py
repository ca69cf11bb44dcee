"""Goals: what a customer wants, by the original's rules, in an order that a seed decides.

A goal's price limit is the larger of two drawn from the next four multiples of ten above the price; at most $990.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentfly_lib.envs.webshop.catalogue import Instruction, Product

__all__ = ["NO_LIMIT", "Goal", "make_goals", "split_goals"]

NO_LIMIT = 1_000_000.0
"""The limit of a goal that has none."""
_LIMITS = [10.0 * tens for tens in range(1, 100)]
_TEST, _DEV = 500, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One wish."""

    product: Product
    """One that fulfils it."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str | tuple[str, str], ...]
    """Values that must be chosen; with their names where the goal was made of the product's options."""
    price_limit: float


def make_goals(products: Sequence[Product], kind: Literal["attributes", "human"], seed: int) -> list[Goal]:
    """All goals of a catalogue, shuffled."""
    make = _attribute_goals if kind == "attributes" else _human_goals
    goals = [goal for product in products for goal in make(product, seed)]
    random.Random(seed).shuffle(goals)
    return goals


def split_goals(count: int) -> dict[str, range]:
    """Numbers of the goals of each split: of the full set the first 500 to test, the next 1,000 to dev, the rest train.

    Of fewer than 3,000 goals a sixth is for test and a third for dev, which is the same at 3,000.
    """
    test, dev = min(_TEST, count // 6), min(_DEV, count // 3)
    return {"test": range(test), "dev": range(test, test + dev), "train": range(test + dev, count)}


def _attribute_goals(product: Product, seed: int) -> Iterator[Goal]:
    if product.worded is None:
        return
    limit = _price_limit(product, f"{seed}/limit/{product.asin}")
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        wish = ", and ".join(f"{name}: {value}" for name, value in options)
        yield Goal(
            product=product,
            instruction=f"{product.worded.text}{' with ' if wish else ''}{wish}{_limit_text(limit)}",
            attributes=product.worded.attributes,
            options=options,
            price_limit=limit,
        )


def _human_goals(product: Product, seed: int) -> Iterator[Goal]:
    for number, wish in enumerate(product.human):
        if wish.attributes:
            yield _human_goal(product, wish, _price_limit(product, f"{seed}/limit/{product.asin}/{number}"))


def _human_goal(product: Product, wish: Instruction, limit: float) -> Goal:
    return Goal(
        product=product,
        instruction=f"{wish.text}{_limit_text(limit)}",
        attributes=wish.attributes,
        options=wish.options,
        price_limit=limit,
    )


def _price_limit(product: Product, seed: str) -> float:
    above = [limit for limit in _LIMITS if limit > product.price][:4]
    return max(random.Random(seed).sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def _limit_text(limit: float) -> str:
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"
