"""Work beside a flow that may fail without harm, such as what a page shows: nobody waits for it before the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["Background"]

logger = logging.getLogger(__name__)

_END_SECONDS = 20.0


class Background:
    """Use from one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs it beside the flow; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def finish(self) -> None:
        """Waits a moment for what is at work, and gives up what is late."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_END_SECONDS)
            for task in late:
                task.cancel()
                logger.warning("background work was not done after %.0f s and is given up", _END_SECONDS)

    def cancel(self) -> None:
        """Gives up what is at work."""
        for task in self._running:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background work failed: %s: %s", type(error).__name__, error)
