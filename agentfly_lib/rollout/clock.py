"""Where the wall time of a collection goes, exact however many chains overlap.

Sums over chains say how long chains waited, not what the collection cost. Here two counters say what is in flight now,
and every interval of wall time belongs to exactly one of three kinds: some generation in flight; none, but a tool; none
of both, which is our own overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

__all__ = ["Activity", "ActivityClock", "CollectTimes"]


class Activity(Protocol):
    """Is told what is in flight."""

    def generating(self) -> AbstractContextManager[None]:
        """A generation is in flight inside this block."""
        ...

    def using_tools(self) -> AbstractContextManager[None]:
        """A turn's tool calls are in flight inside this block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectTimes:
    """Wall seconds of a collection; the three parts add up to `total`."""

    generate: float
    """At least one generation was in flight."""
    tools: float
    """No generation was in flight, but at least one turn's tool calls were."""
    overhead: float
    """Neither: parsing, rendering, scheduling, writing shards with nothing else going on."""

    @property
    def total(self) -> float:
        return self.generate + self.tools + self.overhead

    def __add__(self, other: CollectTimes) -> CollectTimes:
        """Of two collections, one after the other."""
        return CollectTimes(
            generate=self.generate + other.generate,
            tools=self.tools + other.tools,
            overhead=self.overhead + other.overhead,
        )


class ActivityClock:
    """Counts what is in flight and charges each interval between two changes to one kind. One event loop only."""

    def __init__(self, now: Callable[[], float] = perf_counter, *, whole: Activity | None = None) -> None:
        """`whole` is told everything too: it may be that of several collections at the same time."""
        self._now = now
        self._whole = whole
        self._since = now()
        self._generations = 0
        self._tools = 0
        self._generate_seconds = 0.0
        self._tool_seconds = 0.0
        self._overhead_seconds = 0.0

    @contextmanager
    def generating(self) -> Iterator[None]:
        """A generation is in flight inside this block."""
        self._charge()
        self._generations += 1
        try:
            with self._whole.generating() if self._whole else nullcontext():
                yield
        finally:
            self._charge()
            self._generations -= 1

    @contextmanager
    def using_tools(self) -> Iterator[None]:
        """A turn's tool calls are in flight inside this block."""
        self._charge()
        self._tools += 1
        try:
            with self._whole.using_tools() if self._whole else nullcontext():
                yield
        finally:
            self._charge()
            self._tools -= 1

    def times(self) -> CollectTimes:
        """What has passed since the clock was made."""
        self._charge()
        return CollectTimes(generate=self._generate_seconds, tools=self._tool_seconds, overhead=self._overhead_seconds)

    def _charge(self) -> None:
        now = self._now()
        elapsed, self._since = now - self._since, now
        if self._generations:
            self._generate_seconds += elapsed
        elif self._tools:
            self._tool_seconds += elapsed
        else:
            self._overhead_seconds += elapsed
