"""An event loop whose clock jumps to the next timer: hours of waiting pass in milliseconds, the same way every time.

What is computed takes no time at all in it. If everybody waits and no timer is set, nobody would ever wake up; the loop
raises `EverybodyWaits`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["EverybodyWaits", "VirtualTimeLoop", "run"]

Value = TypeVar("Value")


class EverybodyWaits(AssertionError):
    """A deadlock."""


class _Selector(selectors.SelectSelector):
    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise EverybodyWaits
            self.loop.now += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its `time()` is the seconds that were waited for since it was made."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """At once and in no time: a thread would not know when it is."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits it gets it, as from a thread
            future.set_exception(error)
        return future


def run(work: Coroutine[Any, Any, Value]) -> Value:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
