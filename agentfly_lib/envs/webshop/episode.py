"""A visit to the shop: `search[keywords]` and `click[element]`, until something is bought.

The same actions and pages as the original's text environment. What cannot be done changes nothing and is told so. A
search is possible on every page, as it is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentfly_lib.envs.environment import StepResult
from agentfly_lib.envs.webshop.catalogue import Product
from agentfly_lib.envs.webshop.goals import Goal
from agentfly_lib.envs.webshop.nouns import noun_finder
from agentfly_lib.envs.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    SUB_PAGES,
    Element,
    clickable,
    done_page,
    item_page,
    results_page,
    search_page,
    sub_page,
    write_rich,
    write_text,
)
from agentfly_lib.envs.webshop.reward import score_purchase
from agentfly_lib.envs.webshop.settings import WebShopSettings
from agentfly_lib.envs.webshop.shop import open_shop
from agentfly_lib.errors import DataError

__all__ = ["LIST", "MAX_ARGUMENT", "WebShop"]

LIST = "list[]"
"""The action that tells what can be clicked."""
MAX_ARGUMENT = 1000
"""Longest argument of an action, in characters."""
_MAX_SHOWN = 100
_ACTION = re.compile(r"\s*(search|click|list)\[(.*)\]\s*", re.DOTALL)


class WebShop:
    """A customer in a shop. Takes the settings of `WebShopSettings`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = WebShopSettings.model_validate(settings)
        self._shop = open_shop(self._settings)
        self._nouns = noun_finder(self._settings.spacy_model)
        self._goal: Goal | None = None
        self._done = False
        self._page: list[Element] = []
        self._start_over()

    def reset(self, problem: Mapping[str, Any]) -> str:
        """Begins the visit for the goal of the columns `goal`, its number, and `asin`, to be sure that it is the same
        catalogue. Raises `DataError` if it is not.
        """
        number = int(problem["goal"])
        goal = self._shop.goals[number] if 0 <= number < len(self._shop.goals) else None
        if goal is None or goal.product.asin != problem.get("asin", goal.product.asin):
            raise DataError(
                f"goal {number} of this catalogue is not for product {problem.get('asin')}: the problems were made "
                "with another catalogue, seed or kind of goals; prepare the dataset again"
            )
        self._goal = goal
        self._done = False
        self._start_over()
        return self._show(goal)

    def step(self, action: str) -> StepResult:
        """Does `search[...]`, `click[...]` or `list[]`. Info of a purchase tells what the reward is made of."""
        if self._goal is None or self._done:
            return StepResult.refused(
                "The visit is over." if self._done else "The visit has not begun.", done=self._done
            )
        match = _ACTION.fullmatch(action) if len(action) <= MAX_ARGUMENT + 20 else None
        if match is None:
            return StepResult.refused(
                f"This is no action. Write search[keywords] or click[element], at most {MAX_ARGUMENT} characters."
            )
        name, argument = match[1], match[2].strip().lower()
        match name:
            case "list":
                return StepResult(observation=self._clickables())
            case "search" if argument:
                self._search(argument)
            case "search":
                return StepResult.refused("A search needs keywords.")
            case _:
                element = clickable(self._page).get(argument)
                if element is None:
                    return StepResult.refused(
                        f"There is no {argument[:80]!r} to click on this page. {self._clickables()}"
                    )
                if element.text == BUY:
                    return self._buy(self._item(), self._goal)
                self._click(element)
        return StepResult(observation=self._show(self._goal))

    def close(self) -> None:
        """Nothing is held: the shop is everybody's."""

    def _start_over(self) -> None:
        self._hits: list[Product] | None = None
        self._number = 1  # of the page of results
        self._product: Product | None = None
        self._part: str | None = None  # of the product: description, features or reviews
        self._visited: set[str] = set()
        self._chosen: dict[str, str] = {}

    def _search(self, keywords: str) -> None:
        self._hits = self._shop.search(keywords)
        self._show_results(1)

    def _show_results(self, number: int) -> None:
        self._number = number
        self._product = self._part = None
        self._chosen = {}

    def _click(self, element: Element) -> None:
        match element.kind, element.text:
            case "option", value:
                self._chosen[element.group] = value
            case "product", asin:
                self._visited.add(asin)
                self._product = self._shop.by_asin[asin]
            case _, part if part in SUB_PAGES:
                self._part = part
            case _, text if text == BACK:
                self._start_over()
            case _, text if text == NEXT:
                self._show_results(self._number + 1)
            case _, text if text == PREVIOUS and self._part is not None:
                self._part = None
            case _, text if text == PREVIOUS:
                self._show_results(self._number - (self._product is None))

    def _buy(self, product: Product, goal: Goal) -> StepResult:
        self._done = True
        score = score_purchase(product, self._chosen, goal, self._nouns)
        info = {
            "asin": product.asin,
            "options": dict(self._chosen),
            "type_factor": score.type_factor,
            "attributes": score.attributes,
            "options_matched": score.options,
            "price": score.price,
        }
        return StepResult(observation=write_text(done_page()), reward=score.reward, done=True, info=info)

    def _item(self) -> Product:
        assert self._product is not None, "there is a button to buy on a product's page only"
        return self._product

    def _show(self, goal: Goal) -> str:
        if self._product is not None and self._part is not None:
            self._page = sub_page(goal, self._product, self._part)
        elif self._product is not None:
            self._page = item_page(goal, self._product, self._chosen)
        elif self._hits is not None:
            self._page = results_page(goal, self._hits, self._number, self._visited)
        else:
            self._page = search_page(goal)
        text = write_text(self._page) if self._settings.observation == "text" else write_rich(self._page)
        return f"{text}\n{self._clickables()}" if self._settings.clickables == "observation" else text

    def _clickables(self) -> str:
        names = list(clickable(self._page))
        if not names:
            return "Nothing can be clicked here; search for something."
        more = f", and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        return f"You can click: {', '.join(names[:_MAX_SHOWN])}{more}"
