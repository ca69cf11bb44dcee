"""Lends resources to trajectories: one engine for a collection or for a run of an agent.

    async with ResourceEngine(run="demo") as engine:
        async with engine.lease(spec, trajectory="0/3") as resource:
            ...

A resource is looked up by trajectory and whole spec: in one trajectory, equal specs share it and others never do; in
two trajectories nothing is shared, unless the spec says `PoolScope.SHARED`. Pooled ones come from a `Pool`, in the
order of asking, others are opened by their spec. Everything is closed on every way out; what a `kill -9` leaves behind
bears labels (`owner`) and is removed by the next start of the run, or by `agentfly resources reap`.

Trajectories that hold one resource and wait for another could wait for each other for ever. The one whose waiting
would close such a circle gets an `InfrastructureError` instead, gives back what it holds, and may be tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from agentfly_lib.errors import InfrastructureError
from agentfly_lib.resources.closing import CLOSE_SECONDS, close_within
from agentfly_lib.resources.owner import owned_by
from agentfly_lib.resources.pool import Loan, Pool, PoolCounts
from agentfly_lib.resources.spec import AnySpec, PooledSpec, PoolScope

__all__ = ["WAIT_SECONDS", "ResourceEngine", "counted_since"]

logger = logging.getLogger(__name__)

WAIT_SECONDS = 600.0
"""Limit for a trajectory to get a resource, from its place in the queue to the beginning of its episode."""


class ResourceEngine:
    """Pools by spec, and who holds what. Made and used in one event loop."""

    def __init__(self, *, run: str = "") -> None:
        self._run = run
        self._pools: dict[PooledSpec, Pool] = {}
        self._held: dict[tuple[str | None, AnySpec], _Holding] = {}
        self._waits: dict[str, list[Pool]] = {}
        """Pools that trajectories wait for."""
        self._waited = 0.0
        self._longest_wait = 0.0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def warm_up(self, spec: AnySpec) -> None:
        """Begins to make the `warm` resources of a spec, before the first trajectory asks."""
        if isinstance(spec, PooledSpec):
            self._pool(spec).warm_up()

    @asynccontextmanager
    async def lease(
        self, spec: AnySpec, *, trajectory: str, timeout: float | None = WAIT_SECONDS
    ) -> AsyncIterator[Any]:
        """The trajectory's resource of this spec, for the length of the block.

        Blocks of one trajectory and equal specs get the same one; it is given back when the last of them ends.

        timeout: seconds until it must be there; None waits for ever.

        Raises `InfrastructureError` if it is not there in time, if waiting would be for ever, or if it cannot be made;
        and what opening a spec of one's own raises.
        """
        if self._closed:
            raise InfrastructureError("the resource engine is closed", where="resource")
        key = (None if _is_shared(spec) else trajectory, spec)
        holding = await self._holding(key, trajectory)
        holding.users += 1
        try:
            yield await self._in_time(holding, spec, timeout)
        finally:
            holding.users -= 1
            if not holding.users:
                await self._unused(key, holding)

    async def aclose(self) -> None:
        """Closes everything, also what is still lent, in bounded time. Never raises what a resource raises.

        A second call does nothing.
        """
        self._closed = True
        held, self._held = list(self._held.values()), {}
        await _undisturbed(self._close(held))

    def called(self, spec: AnySpec) -> str:
        """What serves a spec, in words; of a pool, also how full it is."""
        pool = self._pools.get(spec) if isinstance(spec, PooledSpec) else None
        return str(pool or type(spec).__name__)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Those that there are now."""
        return tuple(self._pools.values())

    def metrics(self) -> dict[str, float]:
        """Counts since the engine was made, over all pools, and seconds that trajectories have waited."""
        pools = [pool.counts for pool in self._pools.values()]

        def total(count: Callable[[PoolCounts], int]) -> float:
            return float(sum(map(count, pools)))

        return {
            "resources/made/count": total(lambda counts: counts.made),
            "resources/lent/count": total(lambda counts: counts.lent),
            "resources/died/count": total(lambda counts: counts.died),
            "resources/failed/count": total(lambda counts: counts.failed),
            "resources/alive/max": total(lambda counts: counts.most),
            "resources/wait_seconds/sum": self._waited,
            "resources/wait_seconds/max": self._longest_wait,
        }

    async def _holding(self, key: tuple[str | None, AnySpec], trajectory: str) -> _Holding:
        """What is held under this key, or is about to be. A shared one that has died is left to those who use it."""
        owner, spec = key
        holding = self._held.get(key)
        if owner is None and isinstance(spec, PooledSpec) and holding is not None and holding.is_open:
            healthy = await self._pool(spec).is_healthy(holding.value)
            if not healthy and self._held.get(key) is holding:
                del self._held[key]
                if not holding.users:
                    await _undisturbed(holding.close())
            holding = self._held.get(key)
        if holding is None or holding.broken:
            holding = self._held[key] = _Holding(self._opened(spec, trajectory))
        return holding

    async def _unused(self, key: tuple[str | None, AnySpec], holding: _Holding) -> None:
        """The last user of something has left; a shared thing stays, if it is well, for the next."""
        current = self._held.get(key) is holding
        if current and key[0] is None and holding.is_open:
            return
        if current:
            del self._held[key]
        await _undisturbed(holding.close())

    def _pool(self, spec: PooledSpec) -> Pool:
        pool = self._pools.get(spec)
        if pool is None:
            pool = self._pools[spec] = Pool(spec, run=self._run)
        return pool

    @asynccontextmanager
    async def _opened(self, spec: AnySpec, trajectory: str) -> AsyncIterator[Any]:
        owned_by(self._run)
        started = asyncio.get_running_loop().time()
        if isinstance(spec, PooledSpec):
            pool = self._pool(spec)
            loan = await self._borrow(pool, trajectory)
            self._count(started)
            try:
                yield loan.resource
            finally:
                pool.give_back(loan)
        else:
            async with spec.open() as resource:
                self._count(started)
                yield resource

    async def _borrow(self, pool: Pool, trajectory: str) -> Loan:
        waits = self._waits.setdefault(trajectory, [])
        waits.append(pool)
        try:
            if not pool.has_room and not self._can_go_on(trajectory):
                raise InfrastructureError(
                    f"trajectory {trajectory} waits for {pool}, whose users all wait for resources that this "
                    "trajectory or other users hold (a deadlock): raise pool.cap, or take both resources at once",
                    where=f"resource:{pool.name}",
                )
            return await pool.borrow(trajectory)
        finally:
            waits.remove(pool)
            if not waits:
                del self._waits[trajectory]

    def _can_go_on(self, trajectory: str) -> bool:
        """Whether this trajectory gets what it waits for, if those who can go on give back what they hold."""
        users: dict[Pool, set[str | None]] = {pool: set() for pool in self._pools.values()}
        for (owner, spec), holding in self._held.items():
            if isinstance(spec, PooledSpec) and holding.is_open:
                users[self._pool(spec)].add(owner)
        stuck = set(self._waits)

        def frees(pool: Pool) -> bool:
            # Places in making, closing or at the start of an episode belong to nobody who could be stuck.
            return pool.has_room or len(users[pool]) < pool.alive or bool(users[pool] - stuck)

        while freed := {one for one in stuck if all(frees(pool) for pool in self._waits[one])}:
            stuck -= freed
        return trajectory not in stuck

    async def _in_time(self, holding: _Holding, spec: AnySpec, timeout: float | None) -> Any:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await holding.resource()
        except TimeoutError as error:
            if not limit.expired():
                raise
            pool = self._pools.get(spec) if isinstance(spec, PooledSpec) else None
            raise InfrastructureError(
                f"no {self.called(spec)} within {timeout:g} s",
                where=f"resource:{pool.name if pool else type(spec).__name__}",
            ) from error

    def _count(self, started: float) -> None:
        seconds = asyncio.get_running_loop().time() - started
        self._waited += seconds
        self._longest_wait = max(self._longest_wait, seconds)

    async def _close(self, held: list[_Holding]) -> None:
        await asyncio.gather(*(close_within(CLOSE_SECONDS, holding.close(), "what was still lent") for holding in held))
        await asyncio.gather(*(pool.aclose() for pool in self._pools.values()))


class _Holding:
    """Something that is open, or opens, and by how many it is used."""

    def __init__(self, opened: Any) -> None:
        self.users = 0
        self._opened = opened
        self._stack = AsyncExitStack()
        self._opening = asyncio.ensure_future(self._stack.enter_async_context(opened))

    @property
    def is_open(self) -> bool:
        return self._opening.done() and not self.broken

    @property
    def broken(self) -> bool:
        """Did not open."""
        return self._opening.done() and (self._opening.cancelled() or self._opening.exception() is not None)

    @property
    def value(self) -> Any:
        """The resource, if it is open."""
        return self._opening.result()

    async def resource(self) -> Any:
        return await asyncio.shield(self._opening)  # others may wait for the same one

    async def close(self) -> None:
        if not self._opening.done():
            self._opening.cancel()
        await asyncio.wait([self._opening])
        if not self.broken:
            await self._stack.aclose()


def _is_shared(spec: AnySpec) -> bool:
    return isinstance(spec, PooledSpec) and spec.pool.scope is PoolScope.SHARED


def counted_since(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """What `ResourceEngine.metrics` counted between two calls; a maximum is that of the engine's whole life."""
    return {name: value if name.endswith("/max") else value - before.get(name, 0.0) for name, value in now.items()}


async def _undisturbed(work: Awaitable[None]) -> None:
    """To its end, also if whoever waits for it is cancelled meanwhile."""
    await asyncio.shield(asyncio.ensure_future(work))
