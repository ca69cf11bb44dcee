"""Closing what may hang: within a limit of its own, so that it costs nobody else his end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["CLOSE_SECONDS", "close_within"]

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 30.0
"""What everything that one trajectory holds may take to close."""

_given_up: set[asyncio.Task[Any]] = set()
"""Kept here until they end: an event loop does not keep its tasks."""


async def close_within(seconds: float, closing: Coroutine[Any, Any, Any], what: str) -> None:
    """Closes something, and gives it up after so many seconds, also one that does not heed its cancellation.

    Never raises what closing raises; both are logged, and `what` says of whom.
    """
    task = asyncio.ensure_future(closing)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        logger.warning("closing %s took more than %g s and was given up", what, seconds)
        _given_up.add(task)
        task.add_done_callback(_given_up.discard)
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        # What it belonged to is over and its result stands; how a resource ends must not change that.
        logger.error("closing %s failed", what, exc_info=error)
