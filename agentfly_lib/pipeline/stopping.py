"""SIGTERM ends a flow run in order: everything that it has open is closed, and MLflow hears that it was killed.

A worker sends SIGTERM when a flow run is cancelled, and kills what is left after half a minute. Prefect's own handler
raises from whatever code runs at that moment; if that is one of many chains, or a callback of the event loop, its
exception may end there, and not the flow. So the event loop is told too: if the flow is still at work a moment later,
it is cancelled as Ctrl-C does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["raised_by", "stopped_by_sigterm"]

_GRACE_SECONDS = 1.0
"""For what the handler has raised to arrive at the end of the block by itself."""


def raised_by(error: BaseException, kind: type[BaseException]) -> bool:
    """The error is of this kind, or among what work done side by side has raised is one that is."""
    if isinstance(error, BaseExceptionGroup):
        return any(raised_by(each, kind) for each in error.exceptions)
    return isinstance(error, kind)


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM cancels the task that entered it, besides what its handler so far does.

    Put it around the work alone: what closes things stands outside, where nothing cuts it short. Does nothing outside
    the main thread, where there are no signals.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    at_work = True

    def cancel() -> None:
        if at_work:
            task.cancel("SIGTERM")

    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, loop.call_later, _GRACE_SECONDS, cancel)
    # The loop hears of signals through a file descriptor, whichever handler Python calls; Prefect looks for its own.
    signal.signal(signal.SIGTERM, before)
    try:
        yield
    finally:
        at_work = False
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
