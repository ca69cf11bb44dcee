"""When the collection of a step may begin: no earlier than the largest lag allows, and no later than its update waits.

With a lag of L, the collections of the steps v .. v + L go on while version v is served; the one of step s begins with
version s - L, so no token of it is older. With 0, a collection begins when its update asks for it.

        version served     0          1          2          3
        collect 0      ━━━━━━┓
        collect 1      ━━━━━━━━━━━━━━━━┓                      lag 1: while update v computes,
        update  0            ┗━━━━┓     ┃                     the collection of step v + 1 goes on
        collect 2                 ┗━━━━━┿━━━━━┓
        update  1                       ┗━━━━┓┃

All of it lives in one task group: whatever fails ends everything else and is raised where the block ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

from agentfly_lib.together import first_cause

__all__ = ["Lookahead", "StepLine"]

Rollouts = TypeVar("Rollouts")

Collect = Callable[[int], Coroutine[Any, Any, Rollouts]]
"""Collects a step."""


class Lookahead(Generic[Rollouts]):
    """The collections of a run; a context manager. Steps are asked for in ascending order."""

    def __init__(self, *, lag: int, steps: int) -> None:
        """Take the largest lag, and the number of steps of the run."""
        self._lag = lag
        self._steps = steps
        self._group = asyncio.TaskGroup()
        self._begun: dict[int, asyncio.Task[Rollouts]] = {}
        self._next: int | None = None
        self._collect: Collect[Rollouts] | None = None

    async def __aenter__(self) -> Lookahead[Rollouts]:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as failures:
            first = first_cause(failures)
            raise first from first.__cause__

    def serving(self, version: int, collect: Collect[Rollouts]) -> None:
        """This version is served now: `collect` begins the steps that may begin with it."""
        self._collect = collect
        self._next = version if self._next is None else self._next
        if self._lag:
            self._begin_until(version + self._lag)

    async def rollouts(self, step: int) -> Rollouts:
        """The collection of a step, which begins now if it has not."""
        self._begin_until(step)
        return await self._begun.pop(step)

    def _begin_until(self, last: int) -> None:
        if self._collect is None or self._next is None:
            raise RuntimeError("nothing is collected before a version is served")
        for step in range(self._next, min(last, self._steps - 1) + 1):
            self._begun[step] = self._group.create_task(self._collect(step), name=f"rollouts {step}")
            self._next = step + 1


class StepLine:
    """Lets the steps of a run through one by one, in their order, whichever comes first."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def place(self, step: int) -> AsyncIterator[None]:
        """The block runs when every step before has been through it, or failed in it; a step may come again."""
        while step > self._next:
            await self._moved.wait()
        try:
            yield
        finally:
            self._next = max(self._next, step + 1)
            self._moved.set()
            self._moved = asyncio.Event()
