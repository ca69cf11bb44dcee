"""Following a file that somebody else writes: noticed at once if that is this process, at the next look otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

__all__ = ["LOOK_SECONDS", "changed", "looks_at"]

LOOK_SECONDS = 0.5
"""How often to look for what another process has written; on a network file system each look is a round trip."""

_lock = threading.Lock()
_followers: dict[Path, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}


def changed(path: Path) -> None:
    """Tells all who follow this file in this process, from whatever thread."""
    with _lock:
        followers = list(_followers.get(path, ()))
    for loop, event in followers:
        with contextlib.suppress(RuntimeError):  # its loop has ended without it
            loop.call_soon_threadsafe(event.set)


async def looks_at(path: Path) -> AsyncGenerator[None]:
    """Yields now, and then each time that it is worth looking at the file; close it when it is not followed any more.

    Nothing is missed: a change after a look yields again.
    """
    event = asyncio.Event()
    follower = (asyncio.get_running_loop(), event)
    with _lock:
        _followers.setdefault(path, set()).add(follower)
    try:
        while True:
            event.clear()
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await event.wait()
    finally:
        with _lock:
            _followers[path].discard(follower)
            if not _followers[path]:
                del _followers[path]
