"""What a search is: a provider takes a query and gives hits, wherever it has them from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["SearchHit", "SearchProvider"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """One result."""

    title: str
    url: str
    """Where it is from; for a document of a corpus its id."""
    text: str
    """The document, or what the engine shows of it."""
    image: bytes | None = None
    """The picture that the text speaks of, as an image file."""


class SearchProvider(Protocol):
    """Anything that can be searched. Any number of trajectories share one."""

    async def search(self, query: str, count: int) -> list[SearchHit]:
        """At most `count` hits, best first. Raises `InfrastructureError` if there is no answer to be had."""
        ...
