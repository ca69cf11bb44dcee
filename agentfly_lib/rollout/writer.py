"""Makes finished groups durable soon, and many at a time.

One flush to the disk costs milliseconds however many groups it holds. The first group that finishes therefore opens a
short window; everything that finishes within it goes into the same part (group commit). Writing runs in a thread of its
own, so that chains go on meanwhile and blocking tools cannot starve it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from agentfly_lib.types import TrajectoryGroup

__all__ = ["GroupWriter"]


class GroupWriter:
    """Hands groups to `append` in batches. Call `run` once, then `drain` once, however `run` ended."""

    def __init__(
        self,
        append: Callable[[Sequence[TrajectoryGroup]], object],
        *,
        flush_seconds: float,
        groups_per_part: int,
    ) -> None:
        self._append = append
        self._flush_seconds = flush_seconds
        self._groups_per_part = groups_per_part
        self._pending: list[TrajectoryGroup] = []
        self._some = asyncio.Event()
        self._enough = asyncio.Event()
        self._closed = False
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="group-writer")

    def put(self, group: TrajectoryGroup) -> None:
        """Take a finished group."""
        self._pending.append(group)
        self._signal()

    def close(self) -> None:
        """No group will follow: what is pending is written without waiting."""
        self._closed = True
        self._signal()

    async def run(self) -> None:
        """Write until closed and empty.

        Cancelling it leaves a write that has begun to finish by itself; `drain` waits for it.

        Raises:
            ShardError: the file system refused; nothing more is written.
        """
        while True:
            await self._some.wait()
            if not self._pending:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._flush_seconds):
                    await self._enough.wait()
            self._writing = asyncio.create_task(self._write())
            await asyncio.shield(self._writing)

    async def drain(self) -> None:
        """Write what is left and end the thread; after a write that failed, only end the thread.

        Raises:
            ShardError: the file system refused.
        """
        try:
            if self._writing is not None and not self._writing.done():
                await asyncio.shield(self._writing)
            failed = self._writing is not None and (self._writing.cancelled() or self._writing.exception() is not None)
            while self._pending and not failed:
                await self._write()
        finally:
            self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        batch = self._pending[: self._groups_per_part]
        await asyncio.get_running_loop().run_in_executor(self._thread, self._append, batch)
        del self._pending[: len(batch)]
        self._signal()

    def _signal(self) -> None:
        _set(self._some, bool(self._pending) or self._closed)
        _set(self._enough, len(self._pending) >= self._groups_per_part or self._closed)


def _set(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
