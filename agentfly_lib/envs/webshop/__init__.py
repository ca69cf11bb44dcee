"""WebShop (Yao et al. 2022, arXiv 2207.01206): buy what an instruction asks for, in a shop that can be searched.

An engine of our own over the original's files, or over a generated catalogue. See `docs/environments/webshop.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from agentfly_lib.envs.environment import EnvironmentKind
from agentfly_lib.envs.webshop.episode import LIST, WebShop
from agentfly_lib.envs.webshop.settings import CatalogueFiles, GeneratedCatalogue, WebShopSettings, check
from agentfly_lib.envs.webshop.shop import open_shop

__all__ = ["KIND", "CatalogueFiles", "GeneratedCatalogue", "WebShop", "WebShopSettings"]

PROMPT = """\
You are shopping online. Find the product that the instruction asks for, choose the options it names, and buy it. You \
begin on the search page. A search shows products by their codes, such as B09QCP4579; click a code to see the product, \
click options to choose them, and click Buy Now when all is as asked. The purchase ends the visit, and there is only \
one."""


def search(keywords: str) -> str:
    """Search the shop. Shows the first ten hits; click "Next >" for more.

    Args:
        keywords: A few words that the product's title or description has.
    """
    return f"search[{keywords}]"


def click(element: str) -> str:
    """Click a button, a product's code or an option of the current page.

    Args:
        element: The text of the element, as the page shows it.
    """
    return f"click[{element}]"


def list_elements() -> str:
    """Tell what can be clicked on the current page."""
    return LIST


def actions(settings: WebShopSettings) -> Sequence[Callable[..., str]]:
    """The agent's tools."""
    return (search, click) if settings.clickables == "observation" else (search, click, list_elements)


def problems(settings: WebShopSettings, split: Literal["train", "eval"]) -> Iterator[Mapping[str, Any]]:
    """One for each goal of the split."""
    shop = open_shop(settings)
    for number in shop.splits["train" if split == "train" else settings.eval_goals]:
        goal = shop.goals[number]
        yield {
            "id": f"webshop-{number}",
            "question": goal.instruction,
            "goal": number,
            "asin": goal.product.asin,
        }


KIND = EnvironmentKind(
    name="webshop",
    make=WebShop,
    settings=WebShopSettings,
    actions=actions,
    problems=problems,
    prompt=PROMPT,
    place="thread",
    first_observation=False,
    check=check,
    packages=("bm25s", "PyStemmer", "rapidfuzz"),
    start_seconds=1800.0,  # the full catalogue has 1.18 million products
)
