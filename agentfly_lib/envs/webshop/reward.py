"""How well a purchase fulfils a goal: WebShop's reward (Yao et al. 2022, arXiv 2207.01206), as its code has it.

    reward = type * (attributes + options + [price <= limit]) / (|goal attributes| + |goal options| + 1)

with the numbers of attributes and options of the goal that the purchase has, and a factor for the product's type.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agentfly_lib.envs.webshop.catalogue import Product
from agentfly_lib.envs.webshop.goals import Goal
from agentfly_lib.envs.webshop.nouns import NounFinder

__all__ = ["Score", "color_of", "score_purchase", "title_score", "type_factor"]

_SIMILAR = 85
_COLORS = (  # noqa: SIM905  a list of words reads best as one text
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A reward and what it is made of."""

    reward: float
    """From 0 to 1."""
    type_factor: float
    attributes: int
    """Of the goal, that the product has."""
    options: int
    """Of the goal, that were chosen."""
    price: bool
    """Within the limit."""


def score_purchase(product: Product, chosen: Mapping[str, str], goal: Goal, nouns: NounFinder) -> Score:
    """chosen: the options' names to the values that were chosen."""
    attributes = sum(_has_attribute(product, attribute) for attribute in goal.attributes)
    options = _matching_options(chosen.values(), goal)
    price = product.price <= goal.price_limit
    factor = type_factor(product, goal.product, nouns)
    share = (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)
    return Score(reward=factor * share, type_factor=factor, attributes=attributes, options=options, price=price)


def type_factor(bought: Product, wanted: Product, nouns: NounFinder) -> float:
    """1 for a product of the wanted type, down to 0 for one whose title shares no noun."""
    titles = title_score(bought.title, wanted.title, nouns)
    if titles == 0:
        return 0.0
    if titles < 0.1:
        return 0.1
    related = bought.query == wanted.query or len({*bought.category} & {*wanted.category}) >= 2
    return 1.0 if related or titles > 0.2 else 0.5


def title_score(bought: str, wanted: str, nouns: NounFinder) -> float:
    """Share of the wanted title's nouns that the bought one's has too; 0.2 if it has none."""
    wanted_nouns = nouns(wanted)
    return len({*nouns(bought)} & {*wanted_nouns}) / len(wanted_nouns) if wanted_nouns else 0.2


def color_of(option: str | tuple[str, str]) -> str:
    """The first colour of the list that a value contains, else the value.

    A pair of name and value keeps its name, and is a colour only if its value is one: so the original treats goals
    that are made of options, since its test for "contains" meets a pair there.
    """
    for color in _COLORS:
        if color in option:
            return color
    return option if isinstance(option, str) else " ".join(option)


def _matching_options(chosen: Collection[str], goal: Goal) -> int:
    colors = [color_of(value) for value in chosen]
    wanted = (color_of(option) for option in goal.options)
    return sum(any(_similar(color, value) for color in colors) for value in wanted)


def _has_attribute(product: Product, attribute: str) -> bool:
    return (
        any(_similar(own, attribute) for own in product.attributes)
        or attribute in product.title.lower()
        or attribute in " ".join(product.bullets).lower()
        or attribute in product.description.lower()
    )


@functools.lru_cache(maxsize=100_000)
def _similar(one: str, other: str) -> bool:
    from rapidfuzz import fuzz, utils

    plain = (text.encode("ascii", "ignore").decode() for text in (one, other))
    return round(fuzz.token_set_ratio(*plain, processor=utils.default_process)) > _SIMILAR
