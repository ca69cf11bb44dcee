"""A shop: catalogue, search index and goals, made once for equal settings and shared by all episodes of a process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentfly_lib.envs.search.bm25 import Bm25Index
from agentfly_lib.envs.webshop.catalogue import Product, read_catalogue
from agentfly_lib.envs.webshop.goals import Goal, make_goals, split_goals
from agentfly_lib.envs.webshop.settings import CatalogueFiles, GeneratedCatalogue, WebShopSettings
from agentfly_lib.errors import DataError

__all__ = ["MAX_RESULTS", "Shop", "open_shop"]

MAX_RESULTS = 50
"""Hits of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """All that episodes share; nothing in it changes."""

    products: Sequence[Product]
    by_asin: Mapping[str, Product]
    goals: Sequence[Goal]
    index: Bm25Index

    @property
    def splits(self) -> dict[str, range]:
        """Numbers of the goals of `train`, `dev` and `test`."""
        return split_goals(len(self.goals))

    def search(self, keywords: str) -> list[Product]:
        """The best products for some words, at most `MAX_RESULTS`."""
        return [self.products[number] for number, _ in self.index.top(keywords.lower(), MAX_RESULTS)]


_making = threading.Lock()


def open_shop(settings: WebShopSettings) -> Shop:
    """The shop of these settings. Raises `DataError` for files that cannot be used."""
    with _making:  # many episodes begin at the same moment
        # Frozen models can be hashed, which pyright does not see.
        return _make_shop(settings.catalogue, settings.goals, settings.seed)  # pyright: ignore[reportArgumentType]


@functools.lru_cache(maxsize=2)
def _make_shop(
    catalogue: GeneratedCatalogue | CatalogueFiles, goals: Literal["attributes", "human"], seed: int
) -> Shop:
    products = read_catalogue(catalogue, seed)
    found = make_goals(products, goals, seed)
    if not found:
        raise DataError(f"webshop: the catalogue has no goals of the kind {goals!r}")
    return Shop(
        products=products,
        by_asin={product.asin: product for product in products},
        goals=found,
        index=Bm25Index([product.indexed_text for product in products]),
    )
