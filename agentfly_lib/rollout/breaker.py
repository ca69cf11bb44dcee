"""Tells an outage from bad luck: so many infrastructure failures in a row, of several groups, end the collection."""

from __future__ import annotations

from agentfly_lib.errors import EngineError
from agentfly_lib.types import Failure

__all__ = ["CircuitBreaker"]

_FEWEST_GROUPS = 3
"""One problem that breaks all of its chains, try after try, is a bad problem and must not stop a run for ever."""


class CircuitBreaker:
    """Counts failed tries over all chains in the order they end; any try that got through starts the count again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures = 0
        self._groups: set[str] = set()
        self._tripped: EngineError | None = None

    def passed(self) -> None:
        """A try ended without an infrastructure failure."""
        self._failures = 0
        self._groups.clear()

    def failed(self, failure: Failure, *, group_id: str) -> None:
        """A try ended with an infrastructure failure.

        Raises:
            EngineError: it was one too many in a row; the same one again for those that fail after it.
        """
        if self._tripped is not None:
            raise self._tripped
        self._failures += 1
        self._groups.add(group_id)
        if self._failures >= self._limit and len(self._groups) >= _FEWEST_GROUPS:
            self._tripped = EngineError(
                f"{self._failures} infrastructure failures in a row, treated as an outage "
                f"(rollout.max_consecutive_failures={self._limit}); the last one, at {failure.where}: {failure.message}"
            )
            raise self._tripped
