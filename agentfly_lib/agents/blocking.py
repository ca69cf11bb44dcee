"""Coroutines run to their end by code that is not asynchronous, inside a running event loop too (a notebook's)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["run_blocking"]

Result = TypeVar("Result")


def run_blocking(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """The result of `work()`. Where a loop runs already, another one in a thread of its own does the work.

    An interrupt (Ctrl-C) cancels the work before it is raised.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    return _in_thread(work)


def _in_thread(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    outcome: Future[Result] = Future()
    cancel: list[Callable[[], object]] = []
    began = threading.Event()

    async def main() -> Result:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        if task is not None:
            cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        began.set()
        return await work()

    def target() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001  it is raised where the result is awaited
            outcome.set_exception(error)
        finally:
            began.set()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name="agentfly-run-sync", daemon=True)
    thread.start()
    try:
        return outcome.result()
    except BaseException:
        began.wait()
        if not outcome.done():
            cancel[0]()
        thread.join()
        raise
