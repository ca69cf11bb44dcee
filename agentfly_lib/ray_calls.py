"""Ray's blocking calls from an event loop: each in a thread, because Ray may take minutes when a machine has failed.

A thread cannot be cancelled. When its caller is, it goes on: whoever changes the same actors next, and whoever leaves
Ray, waits first for what was abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["abandoned_calls_end", "ray_call"]

P = ParamSpec("P")
Value = TypeVar("Value")

_abandoned: set[asyncio.Task[Any]] = set()


async def ray_call(function: Callable[P, Value], *arguments: P.args, **named: P.kwargs) -> Value:
    """`function(...)`, in a thread."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            _abandoned.add(work)
            work.add_done_callback(_abandoned.discard)
        raise


async def abandoned_calls_end(seconds: float | None = None) -> bool:
    """Waits for the calls whose callers were cancelled, for so long at most; whether there are none any more."""
    mine = {work for work in _abandoned if work.get_loop() is asyncio.get_running_loop()}
    if not mine:
        return True
    _, late = await asyncio.wait(mine, timeout=seconds)
    return not late
