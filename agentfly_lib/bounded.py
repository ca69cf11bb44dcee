"""Running foreign code without trusting it: every wait ends, and nothing it raises reaches the event loop.

A coroutine that swallows its cancellation is left behind after its time limit, and so is a thread, which cannot be
killed at all; both are daemons that hold nothing but their own memory. What must really stop runs in a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Outcome", "TimedOut", "call_in_thread", "is_async", "run_bounded"]


class TimedOut(Exception):
    """The time limit passed before the code returned."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine; `function` may be an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: a value, or what it raised."""

    value: Any = None
    error: BaseException | None = None

    def unwrap(self) -> Any:
        """The value; raises what the call raised, unless that would end the program."""
        if self.error is not None:
            if isinstance(self.error, Exception):
                raise self.error
            raise RuntimeError(f"{type(self.error).__name__}: {self.error}") from self.error
        return self.value


async def run_bounded(awaitable: Awaitable[Any], seconds: float) -> Outcome:
    """Awaits at most `seconds`; the outcome's error is `TimedOut` afterwards. Cancelling this cancels the awaitable."""
    task = asyncio.ensure_future(_caught(awaitable))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task not in done:
        task.cancel()
        return Outcome(error=TimedOut(f"no result after {seconds:g} s"))
    return task.result()


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """Runs blocking code in a thread of its own.

    Not in a shared pool: calls that never return would fill the pool, and the interpreter would wait for them at exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    context = contextvars.copy_context()
    process = os.getpid()

    def deliver(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        try:
            outcome = Outcome(value=context.run(function))
        except BaseException as error:  # noqa: BLE001  foreign code may raise anything, SystemExit included
            outcome = Outcome(error=error)
        if os.getpid() != process:
            os._exit(0)  # The function forked and came back twice: this copy of the program ends here.
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits for this result any more.
            loop.call_soon_threadsafe(deliver, outcome)

    threading.Thread(target=run, name="agentfly-call", daemon=True).start()
    return (await future).unwrap()


async def _caught(awaitable: Awaitable[Any]) -> Outcome:
    """Foreign code's SystemExit, raised inside a task, would stop the loop; here it is an outcome."""
    task = asyncio.current_task()
    try:
        return Outcome(value=await awaitable)
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        return Outcome(error=RuntimeError(f"cancelled itself {error}".strip()))
    except BaseException as error:  # noqa: BLE001  the boundary of foreign code
        return Outcome(error=error)
