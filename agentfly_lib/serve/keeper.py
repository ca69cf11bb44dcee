"""Keeps children alive: starts them, waits until they are well, starts again those that die, and ends them in order.

A child that dies is started again after a pause that doubles; one that dies too often within a while ends everything,
because what keeps dying needs a person.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentfly_lib.errors import UserError
from agentfly_lib.serve.child import Child, Process, tail

__all__ = ["Keeper", "Restarts"]

_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How often a child may die."""

    most: int = 5
    """Deaths within `seconds`; one more ends everything."""
    seconds: float = 600.0
    first_pause: float = 1.0
    """Seconds before it is started again; doubled with each death within `seconds`."""


@dataclass
class _Kept:
    child: Child
    process: Process
    deaths: deque[float] = field(default_factory=deque)
    due: float | None = None
    """When it is started again, while it is dead."""
    recovering: bool = False
    """It was started again and has not been well since."""


class Keeper:
    """Children that live as long as its `with` block."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        restarts: Restarts | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        start: Callable[[Child], Process] = Process,
    ) -> None:
        """`say` tells a person; clock, sleep and start are given by tests."""
        self._say = say
        self._restarts = restarts or Restarts()
        self._clock = clock
        self._sleep = sleep
        self._start = start
        self._kept: list[_Kept] = []

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, child: Child) -> None:
        """Starts a child, and does not wait for it."""
        self._kept.append(_Kept(child, self._start(child)))

    def wait(self, children: Sequence[str], seconds: float) -> None:
        """Waits until these children, by name, are well.

        Raises `UserError` with the end of its log if one dies, or is not well in time.
        """
        waiting = [kept for kept in self._kept if kept.child.name in children]
        deadline = self._clock() + seconds
        while waiting:
            self._check_alive()
            waiting = [kept for kept in waiting if not kept.child.healthy()]
            if waiting and self._clock() > deadline:
                kept = waiting[0]
                raise UserError(f"the {kept.child.name} did not answer within {seconds:.0f} s. {_log(kept.child)}")
            if waiting:
                self._sleep(_LOOK_SECONDS)

    def wait_until(self, done: Callable[[], bool], what: str, seconds: float) -> None:
        """Waits for something that the children bring about. Raises `UserError` if one dies, or the time is over."""
        deadline = self._clock() + seconds
        while not done():
            self._check_alive()
            if self._clock() > deadline:
                raise UserError(f"{what} was not there within {seconds:.0f} s. {_log(self._kept[-1].child)}")
            self._sleep(_LOOK_SECONDS)

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        """Starts again what dies, until `until` says so, or the caller is interrupted.

        Raises `UserError` when a child dies too often.
        """
        while not until():
            for kept in self._kept:
                self._look_after(kept)
            self._sleep(1.0)

    def stop(self) -> None:
        """Ends the children, the newest first: a worker can still tell its server how its runs ended."""
        for kept in reversed(self._kept):
            kept.process.ask_to_end()
            kept.process.end(kept.child.stop_seconds)
        self._kept.clear()

    def _check_alive(self) -> None:
        for kept in self._kept:
            if (status := kept.process.ended()) is not None:
                raise UserError(
                    f"the {kept.child.name} ended with exit status {status} instead of starting. {_log(kept.child)}"
                )

    def _look_after(self, kept: _Kept) -> None:
        now = self._clock()
        if kept.due is not None:
            if now >= kept.due:
                kept.due, kept.recovering = None, True
                kept.process = self._start(kept.child)
            return
        status = kept.process.ended()
        if status is None:
            if kept.recovering and kept.child.healthy():
                kept.recovering = False
                self._say(f"the {kept.child.name} is back")
            return
        kept.process.end(0.0)  # what it had started may live on
        while kept.deaths and now - kept.deaths[0] > self._restarts.seconds:
            kept.deaths.popleft()
        kept.deaths.append(now)
        if len(kept.deaths) > self._restarts.most:
            raise UserError(
                f"the {kept.child.name} has died {len(kept.deaths)} times in {self._restarts.seconds / 60:.0f} "
                f"minutes, at last with exit status {status}; all else is stopped. {_log(kept.child)}"
            )
        pause = self._restarts.first_pause * 2 ** (len(kept.deaths) - 1)
        kept.due = now + pause
        self._say(f"the {kept.child.name} ended with exit status {status}; started again in {pause:.0f} s")


def _log(child: Child) -> str:
    return f"Its log is {child.log}:\n{tail(child.log)}"
