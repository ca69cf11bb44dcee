"""From an engine's thread into the event loop of whoever listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from agentfly_lib.inference.generate import Delta, Generation

__all__ = ["relayed"]


async def relayed(
    work: Callable[[Callable[[Delta], None]], Coroutine[Any, Any, Generation]], on_delta: Callable[[Delta], None]
) -> Generation:
    """What `work(tell)` returns, where `tell` may be called in any thread and reaches `on_delta` in this event loop.

    Whatever was told before `work` had its result arrives before it is returned, and nothing later does. What
    `on_delta` raises cancels `work`, and is raised here.
    """
    loop, over = asyncio.get_running_loop(), False
    broken: list[Exception] = []

    def here(delta: Delta) -> None:
        if over or broken:
            return
        try:
            on_delta(delta)
        except Exception as error:  # noqa: BLE001 - it is the caller's own, and raised there
            broken.append(error)
            task.cancel()

    def tell(delta: Delta) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens any more
            loop.call_soon_threadsafe(here, delta)

    task = asyncio.ensure_future(work(tell))
    try:
        generation = await task
    except asyncio.CancelledError:
        ours = asyncio.current_task()
        if broken and ours is not None and not ours.cancelling():
            raise broken[0] from None
        raise
    finally:
        over = True
    if broken:
        raise broken[0]
    return generation
