"""Slots of chains: how many are in flight at the same time, and who is next when one ends.

Collections that overlap share them. A slot that becomes free goes to the collection of the earliest step that waits,
and only then to a later one: a few long chains of step 7 leave their neighbours' slots to step 8, and what step 7 still
has to begin never stands behind it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

__all__ = ["ChainSlots"]


class ChainSlots:
    """A bounded number of slots, given away by rank and, within a rank, in the order of asking. One event loop only."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"chains need at least one slot, not {size}")
        self._free = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()
        self._giving = False
        """The next slot is about to be given."""

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return self._free

    async def acquire(self, rank: int) -> None:
        """Take a slot, as soon as there is one that nobody of a lower rank waits for. `release` gives it back."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._number), mine))
        self._give_soon()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it was given in the moment in which the wait was given up
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self._free += 1
        self._give_soon()

    async def turn(self, rank: int) -> None:
        """Wait until a slot could be had, and leave it to whoever is next."""
        await self.acquire(rank)
        self.release()

    def _give_soon(self) -> None:
        if self._free and self._waiting and not self._giving:
            self._giving = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        """One slot at a time: whoever gets it may want another one, and is asked before those of a higher rank."""
        self._giving = False
        while self._waiting:
            _, _, first = heapq.heappop(self._waiting)
            if not first.done():
                self._free -= 1
                first.set_result(None)
                break
        self._give_soon()
