"""What goes on in a run at each moment, and for how long: collections and updates may be at work at the same time.

Every instant of a step belongs to one kind, the first of these that is going on: a generation; a tool call; an update;
nothing of these (the quiet time). What belongs to no step (checkpoints, evaluations) is left out of all. Beside the
kinds stand two measures that overlap with them: how much of an update a collection was going on, and how long no
generation was in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from time import perf_counter

__all__ = ["RunActivity", "StepActivity"]

Interval = tuple[float, float]
"""From, to, by the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepActivity:
    """Wall seconds of a step so far. `generation`, `tools`, `update` and the quiet time add up to `wall`."""

    wall: float
    generation: float
    """At least one generation was in flight."""
    tools: float
    """None was, but a tool call."""
    update: float
    """None of both, but an update."""
    updating: float
    """An update was going on, whatever else was."""
    overlap: float
    """Of `updating`: a collection was going on too."""
    engine_idle: float
    """No generation was in flight."""
    quiet: tuple[Interval, ...]
    """When there was neither a collection nor an update."""

    def quiet_within(self, intervals: Iterable[Interval]) -> float:
        """Seconds of the quiet intervals that lie in `intervals`, which do not overlap each other."""
        return sum(
            max(0.0, min(end, until) - max(start, since)) for start, end in intervals for since, until in self.quiet
        )


class _Kind(Enum):
    GENERATION = auto()
    TOOLS = auto()
    COLLECTION = auto()
    UPDATE = auto()
    OUTSIDE = auto()


class RunActivity:
    """Told what begins and ends; an `Activity` of collections. One event loop only."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._open: Counter[_Kind] = Counter()
        self.restart()

    def restart(self) -> None:
        """A new step begins; what goes on, goes on."""
        self._since = self._now()
        self._wall = self._generation = self._tools = self._update = 0.0
        self._updating = self._overlap = self._idle = 0.0
        self._quiet: list[Interval] = []

    @property
    def generations(self) -> int:
        """In flight now."""
        return self._open[_Kind.GENERATION]

    @property
    def tool_calls(self) -> int:
        """Turns whose tool calls are in flight now."""
        return self._open[_Kind.TOOLS]

    def generating(self) -> AbstractContextManager[None]:
        """A generation is in flight inside this block."""
        return self._during(_Kind.GENERATION)

    def using_tools(self) -> AbstractContextManager[None]:
        """A turn's tool calls are in flight inside this block."""
        return self._during(_Kind.TOOLS)

    def collecting(self) -> AbstractContextManager[None]:
        """A collection is going on inside this block."""
        return self._during(_Kind.COLLECTION)

    def updating(self) -> AbstractContextManager[None]:
        """The learner is at work on an update inside this block."""
        return self._during(_Kind.UPDATE)

    def outside(self) -> AbstractContextManager[None]:
        """The time of this block belongs to no step."""
        return self._during(_Kind.OUTSIDE)

    def so_far(self) -> StepActivity:
        """Since the last `restart`."""
        self._charge()
        return StepActivity(
            wall=self._wall,
            generation=self._generation,
            tools=self._tools,
            update=self._update,
            updating=self._updating,
            overlap=self._overlap,
            engine_idle=self._idle,
            quiet=tuple(self._quiet),
        )

    @contextmanager
    def _during(self, kind: _Kind) -> Iterator[None]:
        self._charge()
        self._open[kind] += 1
        try:
            yield
        finally:
            self._charge()
            self._open[kind] -= 1

    def _charge(self) -> None:
        """What has passed since the last change belongs to what was going on then."""
        since, now, going_on = self._since, self._now(), self._open
        self._since, elapsed = now, now - since
        if going_on[_Kind.OUTSIDE]:
            return
        self._wall += elapsed
        if going_on[_Kind.UPDATE]:
            self._updating += elapsed
            self._overlap += elapsed if going_on[_Kind.COLLECTION] else 0.0
        if going_on[_Kind.GENERATION]:
            self._generation += elapsed
            return
        self._idle += elapsed
        if going_on[_Kind.TOOLS]:
            self._tools += elapsed
        elif going_on[_Kind.UPDATE]:
            self._update += elapsed
        elif not going_on[_Kind.COLLECTION]:
            self._quiet.append((since, now))
