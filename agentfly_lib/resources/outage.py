"""Tells whether more resources should be made: after a few failures in a row none is, for a while.

usable   failure, failure, failure -> paused   nothing is tried
paused   its time is over          -> trial    one is tried
trial    failure -> paused, for twice as long; success -> usable
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Outage"]


class Outage:
    """Counts failures in a row. It neither waits nor tries anything itself."""

    def __init__(
        self, clock: Callable[[], float], *, limit: int = 3, pause_seconds: float = 1.0, longest_seconds: float = 60.0
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._pause = pause_seconds
        self._longest = longest_seconds
        self._failures = 0
        self._until = 0.0

    @property
    def lasts(self) -> bool:
        """More failures in a row than bad luck explains, and no success since."""
        return self._failures >= self._limit

    @property
    def seconds_left(self) -> float:
        """Until the next trial; 0 if there may be one now."""
        return max(0.0, self._until - self._clock()) if self.lasts else 0.0

    def permits(self, running: int) -> bool:
        """Whether one more may be tried while `running` others are."""
        return not self.lasts or (running == 0 and self.seconds_left == 0)

    def failed(self) -> None:
        self._failures += 1
        if self.lasts:
            pause = self._pause * 2.0 ** min(self._failures - self._limit, 30)
            self._until = self._clock() + min(self._longest, pause)

    def passed(self) -> None:
        self._failures = 0
