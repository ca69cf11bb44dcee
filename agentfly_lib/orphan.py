"""Ends a detached process that nobody calls any more: its run was killed and never resumed.

A thread looks at the time of the last call, so it works beside code that blocks the process's main thread. A call that
is still running counts as now.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["ORPHANED_SECONDS", "OrphanTimer"]

logger = logging.getLogger(__name__)

ORPHANED_SECONDS = 3 * 3600.0
"""So long without a call means that none will come."""


def end_process() -> None:
    """Ends this process as `kill` does."""
    os.kill(os.getpid(), signal.SIGTERM)


class OrphanTimer:
    """Calls `end` once, when `seconds` have passed without a call. It starts when it is made."""

    def __init__(self, what: str, *, seconds: float = ORPHANED_SECONDS, end: Callable[[], None] = end_process) -> None:
        self._what = what
        self._seconds = seconds
        self._end = end
        self._changed = threading.Condition()
        self._called = time.monotonic()
        self._running = 0
        threading.Thread(target=self._watch, name="orphan-timer", daemon=True).start()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Wraps a call; the time counts anew from its end."""
        with self._changed:
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._called = time.monotonic()
                self._changed.notify()

    def touch(self) -> None:
        """A call came; for calls that are not waited for."""
        with self._changed:
            self._called = time.monotonic()

    def limit(self, seconds: float) -> None:
        """Sets another limit, from now on."""
        with self._changed:
            self._seconds = seconds
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while self._running or self._left() > 0:
                self._changed.wait(None if self._running else self._left())
        logger.warning("nobody has called %s for %g s; it ends", self._what, self._seconds)
        self._end()

    def _left(self) -> float:
        return self._called + self._seconds - time.monotonic()
