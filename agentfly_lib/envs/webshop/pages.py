"""What a page of the shop shows: a list of elements, and the two ways to write it down.

`text` joins what is visible by [SEP]; `rich` has a line for each element and marks what can be clicked, and what has
been, as the original's `text` and `text_rich` do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentfly_lib.envs.webshop.catalogue import Product
from agentfly_lib.envs.webshop.goals import Goal

__all__ = [
    "BACK",
    "BUY",
    "NEXT",
    "PAGE_SIZE",
    "PREVIOUS",
    "SUB_PAGES",
    "Element",
    "clickable",
    "done_page",
    "item_page",
    "results_page",
    "search_page",
    "sub_page",
    "write_rich",
    "write_text",
]

SEARCH, BACK, NEXT, PREVIOUS, BUY = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
PAGE_SIZE = 10
"""Hits on a page of results."""


@dataclass(frozen=True, slots=True)
class Element:
    """Something visible."""

    text: str
    kind: Literal["text", "button", "option", "product"] = "text"
    group: str = ""
    """Of an option: its name, such as `color`."""
    clicked: bool = False


def search_page(goal: Goal) -> list[Element]:
    """Where an episode begins."""
    return [Element("WebShop"), *_instruction(goal), Element(SEARCH, "button")]


def results_page(goal: Goal, hits: Sequence[Product], page: int, visited: Collection[str]) -> list[Element]:
    """Ten hits. page: from 1; pages beyond the last one are empty."""
    found = [*_instruction(goal), Element(BACK, "button"), Element(f"Page {page} (Total results: {len(hits)})")]
    if page > 1:
        found.append(Element(PREVIOUS, "button"))
    found.append(Element(NEXT, "button"))
    for product in hits[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]:
        asin = Element(product.asin, "product", clicked=product.asin in visited)
        found += [asin, Element(product.title), Element(product.price_tag)]
    return found


def item_page(goal: Goal, product: Product, chosen: Mapping[str, str]) -> list[Element]:
    """A product and its options."""
    found = [*_instruction(goal), Element(BACK, "button"), Element(PREVIOUS, "button")]
    for name, values in product.options.items():
        found.append(Element(name))
        found += [Element(value, "option", group=name, clicked=chosen.get(name) == value) for value in values]
    return [
        *found,
        Element(product.title),
        Element(f"Price: {product.price_tag}"),
        Element(f"Rating: {product.rating}"),
        *(Element(name, "button") for name in SUB_PAGES),
        Element(BUY, "button"),
    ]


def sub_page(goal: Goal, product: Product, name: str) -> list[Element]:
    """A product's description, features or reviews."""
    head = [*_instruction(goal), Element(BACK, "button"), Element(PREVIOUS, "button")]
    match name:
        case "Description":
            return [*head, Element(product.description)]
        case "Features":
            return [*head, *map(Element, product.bullets)]
    texts = (text for review in product.reviews for text in (f'"{review.title}"', review.score, review.body))
    return [*head, *map(Element, texts)]


def done_page() -> list[Element]:
    """After the purchase."""
    return [Element("Thank you for shopping with us!")]


def clickable(page: Sequence[Element]) -> dict[str, Element]:
    """By what is written into `click[...]`, in lower case. Of equal values in two groups of options the last counts."""
    found = {element.text.lower(): element for element in page if element.kind != "text"}
    found |= {element.text.lower(): element for element in page if element.kind in ("button", "product")}
    found.pop(SEARCH.lower(), None)
    return found


def write_text(page: Sequence[Element]) -> str:
    """The original's `text`."""
    texts = (element.text.strip() for element in page)
    return " [SEP] ".join(text for text in texts if text)


def write_rich(page: Sequence[Element]) -> str:
    """The original's `text_rich`."""
    chosen = [f"You have clicked {element.text}.\n" for element in page if element.kind == "option" and element.clicked]
    return "".join([*reversed(chosen), *(_rich_line(element) for element in page if element.text.strip())])


def _rich_line(element: Element) -> str:
    indent = {"option": "  ", "product": "\n"}.get(element.kind, "")
    if element.kind == "text":
        return f"{element.text}\n"
    if element.clicked:
        return f"{indent}[clicked button] {element.text} [clicked button_]\n"
    return f"{indent}[button] {element.text} [button_]\n"


def _instruction(goal: Goal) -> list[Element]:
    return [Element("Instruction:"), Element(goal.instruction)]
