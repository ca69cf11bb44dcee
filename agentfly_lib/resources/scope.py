"""What one trajectory holds: resources opened at first use, and closed together when it ends, however it ends."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from agentfly_lib.resources.closing import CLOSE_SECONDS, close_within
from agentfly_lib.resources.engine import WAIT_SECONDS, ResourceEngine
from agentfly_lib.resources.spec import AnySpec

__all__ = ["ResourceScope"]

_OVERDUE_SHARE = 0.1
"""Of the time for closing, what each that is left gets when it is over."""

_scopes = itertools.count()


class ResourceScope:
    """Resources by their spec, and whatever else must be undone at the end.

    Things are closed in the reverse order of their opening. One that fails or hangs is logged and costs nobody else.
    What is pooled comes from `engine`; a scope without one has an engine of its own, for as long as it lives.
    """

    def __init__(
        self,
        engine: ResourceEngine | None = None,
        trajectory: str = "alone",
        *,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """wait_seconds: limit for each resource to be there."""
        self.waited = 0.0
        """Seconds in which resources of this scope were waited for, each by itself."""
        self._engine = engine
        self._wait_seconds = wait_seconds
        self._name = f"{trajectory} ({next(_scopes)})"  # another try of a trajectory shares nothing with this one
        self._closers: list[Callable[[], Awaitable[object]]] = []
        self._opening: dict[AnySpec, asyncio.Future[Any]] = {}
        self._used = False
        self._closed = False

    async def get(self, spec: AnySpec) -> Any:
        """The resource of this spec; the first call opens it. Raises what opening it raised, each time anew."""
        if self._closed:
            raise RuntimeError("the trajectory has ended, and what it held is closed")
        known = self._opening.get(spec)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            self._used = True
            known = self._opening[spec] = asyncio.ensure_future(self._open(spec))
        return await asyncio.shield(known)  # others may wait for the same one

    def __getitem__(self, spec: AnySpec) -> Any:
        """The resource of this spec, which must be open: a tool's own `needs` is before each of its calls."""
        known = self._opening.get(spec)
        if known is None or not known.done():
            raise KeyError(f"{spec} is not open; name it as the tool's `needs`, or await `resources.get(...)`")
        return known.result()

    @property
    def awaited(self) -> tuple[str, ...]:
        """What is not there yet and is waited for."""
        waiting = [spec for spec, opening in self._opening.items() if not opening.done()]
        return tuple(self._engine.called(spec) if self._engine else type(spec).__name__ for spec in waiting)

    def at_end(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Has `closer` called when the trajectory ends."""
        if self._closed:
            raise RuntimeError("the trajectory has ended already")
        self._used = True
        self._closers.append(closer)

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> None:
        """Closes everything, within `seconds`; what is left then gets a tenth of them each. A second call does nothing.

        Never raises what a resource raises. If the caller is cancelled meanwhile, closing goes on by itself.
        """
        if self._closed:
            return
        self._closed = True
        if self._used:
            await asyncio.shield(asyncio.ensure_future(self._close(seconds)))

    async def _open(self, spec: AnySpec) -> Any:
        if self._engine is None:
            self._engine = ResourceEngine()
            self._closers.append(self._engine.aclose)
        started = perf_counter()
        try:
            lease = self._engine.lease(spec, trajectory=self._name, timeout=self._wait_seconds)
            resource = await lease.__aenter__()
            self._closers.append(functools.partial(lease.__aexit__, None, None, None))
            return resource
        finally:
            self.waited += perf_counter() - started

    async def _close(self, seconds: float) -> None:
        clock = asyncio.get_running_loop()
        deadline = clock.time() + seconds
        opening = [future for future in self._opening.values() if not future.done()]
        for future in opening:
            future.cancel()
        if opening:
            await asyncio.wait(opening, timeout=seconds)
        while self._closers:
            left = max(deadline - clock.time(), seconds * _OVERDUE_SHARE)
            await close_within(left, _called(self._closers.pop()), f"what trajectory {self._name} held")


async def _called(closer: Callable[[], Awaitable[object]]) -> None:
    await closer()
