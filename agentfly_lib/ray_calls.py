"""Ray's blocking calls from an event loop: each in a thread, because Ray may take minutes when a machine has failed.

A thread cannot be cancelled. When its caller is, it goes on: whoever changes the same actors next, and whoever leaves
Ray, waits first for what was abandoned.

And the actors of a namespace by their names, which is all that one must know of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

__all__ = ["abandoned_calls_end", "end_named", "living_actor", "named_actors", "ray_call"]

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


def living_actor(name: str, namespace: str) -> Any | None:
    """Ray's handle of an actor, which has no type of its own; None if there is none of this name. Blocks."""
    import ray

    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def named_actors(namespace: str, *, prefix: str = "") -> dict[str, Any]:
    """Handles of the living actors of a namespace whose names begin so. Blocks."""
    import ray

    entries: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    names = [entry["name"] for entry in entries if entry["namespace"] == namespace]
    found = {name: living_actor(name, namespace) for name in names if name.startswith(prefix)}
    return {name: handle for name, handle in found.items() if handle is not None}


def end_named(names: Iterable[str], namespace: str, *, seconds: float) -> list[str]:
    """Ends actors, and waits until their names are free, for so long at most; names that are still taken. Blocks."""
    import ray

    deadline = time.monotonic() + seconds
    while True:
        found = {name: handle for name in names if (handle := living_actor(name, namespace)) is not None}
        for handle in found.values():
            ray.kill(handle, no_restart=True)
        if not found or time.monotonic() > deadline:
            return list(found)
        time.sleep(0.05)  # Ray tells nobody when a name is free again
