"""What the trajectories of a run borrow from: one `ResourceEngine` for all of its collections and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from agentfly_lib.resources import ResourceEngine, counted_since
from agentfly_lib.resources.pool import Pool

__all__ = ["Borrowing"]


class Borrowing:
    """The engine is made at its first use."""

    def __init__(self, run: str, closing: AsyncExitStack) -> None:
        """Take the run's name; `closing` closes the engine."""
        self._run = run
        self._closing = closing
        self._engine: ResourceEngine | None = None
        self._counted: dict[str, float] = {}

    @property
    def engine(self) -> ResourceEngine:
        """The run's, so that what took long to start serves one step after another."""
        if self._engine is None:
            self._engine = ResourceEngine(run=self._run)
            self._closing.push_async_callback(self._engine.aclose)
        return self._engine

    @property
    def pools(self) -> Sequence[Pool]:
        """What is lent now; empty until something is."""
        return self._engine.pools if self._engine is not None else ()

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """What the engine counted since its metrics were `before`, or since this was asked last if that was later.

        Collections that overlap then count nothing twice.
        """
        since = {name: max(value, self._counted.get(name, 0.0)) for name, value in before.items()}
        self._counted = self.engine.metrics()
        return counted_since(since, self._counted)
