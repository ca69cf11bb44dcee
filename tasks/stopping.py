"""SIGTERM ends a flow run in order: everything that it has open is closed, and MLflow hears that it was killed.

A worker sends SIGTERM when a flow run is cancelled, and kills what is left after half a minute. Prefect's own handler
raises from whatever code runs at that moment; if that is one of many chains, or a callback of the event loop, its
exception ends there, and not the flow. So the event loop is told too, and cancels the flow as Ctrl-C does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["Stop", "stopped_by_sigterm"]


class Stop:
    """Whether the flow was asked to end."""

    def __init__(self) -> None:
        self.asked = False


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[Stop]:
    """Within the block SIGTERM cancels the task that entered it, besides what its handler so far does.

    Does nothing outside the main thread, where there are no signals.
    """
    stop, task, loop = Stop(), asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def cancel() -> None:
        stop.asked = True
        task.cancel("SIGTERM")

    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, cancel)
    # The loop hears of signals through a file descriptor, whichever handler Python calls; Prefect looks for its own.
    signal.signal(signal.SIGTERM, before)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
