"""The resources of one spec: made, lent in the order of asking, begun anew for each episode, replaced, closed.

Making and closing are the pool's own tasks, so that a borrower who gives up in the middle costs nobody anything: what
was being made for him goes to the next in the queue. A resource's place counts against the cap from before it is made
until it is closed.

    made -> idle -> in use -> idle ...        begun anew, and asked for its health, each time
              |        |
              +--------+--> closing -> gone   not needed, dead, used up

Whoever waits ends in one of three ways: with a resource, with an error, or by giving up himself. A dead resource gives
its place away when it comes back, or before, if others wait: then those in use are asked for their health as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from agentfly_lib.errors import InfrastructureError, RolloutError, UserError
from agentfly_lib.resources.outage import Outage
from agentfly_lib.resources.owner import owned_by
from agentfly_lib.resources.spec import PooledSpec, Resource
from agentfly_lib.visible import visible

__all__ = ["Loan", "Pool", "PoolCounts"]

logger = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
"""How often resources in use are asked for their health while others wait."""
_FRESH_TRIES = 3
"""New resources that are dead on arrival before the borrower is told."""


@dataclass(slots=True, kw_only=True)
class PoolCounts:
    """What a pool has done since it was made."""

    made: int = 0
    failed: int = 0
    """Could not be made."""
    lent: int = 0
    died: int = 0
    """Found dead, or could not begin anew."""
    closed: int = 0
    most: int = 0
    """At the same time, idle ones and those being made or closed included."""


@dataclass(slots=True, eq=False)
class Loan:
    """A resource and its place in the pool."""

    resource: Any
    episodes: int = 0
    idle_since: float = 0.0
    gone: bool = False


class Pool:
    """See above. Made and used in one event loop."""

    def __init__(self, spec: PooledSpec, *, run: str = "", name: str | None = None) -> None:
        self._spec = spec
        self._limits = spec.pool
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._outage = Outage(self._loop.time)
        self._waiters: deque[asyncio.Future[Loan]] = deque()
        self._idle: deque[Loan] = deque()  # the longest idle one first
        self._used: set[Loan] = set()
        self._making: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self._episodes = itertools.count()
        self.name = name or type(spec).__name__
        self.counts = PoolCounts()

    @property
    def alive(self) -> int:
        """Resources that exist, and those being made or closed."""
        return len(self._idle) + len(self._used) + len(self._making) + len(self._closing)

    @property
    def in_use(self) -> int:
        return len(self._used)

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def has_room(self) -> bool:
        """A newcomer would get one without anybody giving one back."""
        return bool(self._idle) or self._limits.cap is None or self.alive < self._limits.cap

    def __str__(self) -> str:
        cap = "" if self._limits.cap is None else f" of {self._limits.cap}"
        return (
            f"{self.name} ({self.in_use}{cap} in use, {len(self._making)} being made, {len(self._closing)} being "
            f"closed, {self.waiting} waiting)"
        )

    def warm_up(self) -> None:
        """Begins to make the `warm` ones."""
        self._settle()

    async def borrow(self, trajectory: str) -> Loan:
        """One that has begun an episode of `trajectory`, when it is this caller's turn. Cancel it to give up.

        Raises what `create` or `begin` raised; `InfrastructureError` if none can be had, or the pool is closed.
        """
        fresh_tries = 0
        first = False
        while True:
            loan = await self._turn(first=first)
            try:
                usable = await self._begin(loan, f"{trajectory}#{next(self._episodes)}")
            except BaseException:
                self._retire(loan)
                raise
            if usable and not loan.gone:
                loan.episodes += 1
                self.counts.lent += 1
                return loan
            self.counts.died += not loan.gone
            fresh_tries += loan.episodes == 0
            self._retire(loan)
            if fresh_tries == _FRESH_TRIES:
                raise InfrastructureError(
                    f"{_FRESH_TRIES} new resources of {self.name} were dead before their first use", where=self._where
                )
            first = True  # it has waited, and keeps its turn

    def give_back(self, loan: Loan) -> None:
        """Ends a loan. One that has died or is used up gives its place to another."""
        if loan.gone:
            return
        self._used.discard(loan)
        if self._closed or loan.episodes == self._limits.episodes:
            self._retire(loan)
        else:
            loan.idle_since = self._loop.time()
            self._idle.append(loan)
        self._settle()

    async def aclose(self) -> None:
        """Closes everything, also what is still lent. Never raises what a resource raises."""
        self._closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(InfrastructureError(f"{self.name} is closed", where=self._where))
        self._waiters.clear()
        for timer in self._timers.values():
            timer.cancel()
        for task in (*self._making, *([self._watch] if self._watch else [])):
            task.cancel()
        await self._ended(self._making)
        for loan in (*self._idle, *self._used):
            self._retire(loan)
        self._idle.clear()
        await self._ended(self._closing)

    @property
    def _where(self) -> str:
        return f"resource:{self.name}"

    async def _turn(self, *, first: bool) -> Loan:
        if self._closed:
            raise InfrastructureError(f"{self.name} is closed", where=self._where)
        waiter: asyncio.Future[Loan] = self._loop.create_future()
        (self._waiters.appendleft if first else self._waiters.append)(waiter)
        self._settle()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
                self._settle()
            elif waiter.exception() is None:  # it was served in the instant in which it gave up
                self.give_back(waiter.result())
            raise

    async def _begin(self, loan: Loan, episode: str) -> bool:
        """Whether it is alive and has begun the episode. Raises if one that was never used cannot begin."""
        resource: Resource = loan.resource
        if not await self.is_healthy(resource):
            return False
        try:
            await _within(self._limits.step_seconds, resource.begin(episode))
        except Exception as error:
            # Whatever a used resource raises, another takes its place; a new one that cannot begin says something.
            if loan.episodes == 0:
                raise _classified(error, f"{self.name} cannot begin an episode", self._where) from error
            logger.info("%s cannot begin another episode and is replaced: %s", self.name, _said(error))
            return False
        return True

    async def is_healthy(self, resource: Resource) -> bool:
        """Whether a resource says that it can be used; never raises."""
        try:
            return await _within(self._limits.step_seconds, resource.healthy())
        except Exception:  # one that cannot even say how it is, is not well
            logger.debug("%s does not say whether it is healthy", self.name, exc_info=True)
            return False

    def _settle(self) -> None:
        """Lends what is idle, makes what is missing, closes what nobody needs; called after every change."""
        if self._closed:
            return
        while self._waiters and self._idle:
            waiter = self._waiters.popleft()
            if not waiter.done():
                loan = self._idle.pop()
                self._used.add(loan)
                waiter.set_result(loan)
        for _ in range(len(self._waiters) + self._limits.warm - len(self._idle) - len(self._making)):
            if not self._has_place or not self._outage.permits(len(self._making)):
                break
            self._start(self._make(), self._making)
        self.counts.most = max(self.counts.most, self.alive)
        self._trim()
        missing = bool(self._waiters) or len(self._idle) < self._limits.warm
        if missing and (pause := self._outage.seconds_left) > 0:
            self._later("trial", pause, self._settle)
        if self._waiters and (self._watch is None or self._watch.done()):
            self._watch = self._loop.create_task(self._look_after())

    @property
    def _has_place(self) -> bool:
        return self._limits.cap is None or self.alive < self._limits.cap

    def _trim(self) -> None:
        """Closes what has been idle for too long."""
        now, patience = self._loop.time(), self._limits.idle_seconds
        while len(self._idle) > self._limits.warm and self._idle[0].idle_since + patience <= now:
            self._retire(self._idle.popleft())
        if len(self._idle) > self._limits.warm:
            self._later("trim", self._idle[0].idle_since + patience - now, self._settle)

    async def _make(self) -> None:
        owned_by(self._run)
        try:
            resource = await _within(self._limits.start_seconds, self._spec.create())
        except Exception as error:  # noqa: BLE001  whoever waits gets it; if nobody does (a warm one), the log
            self.counts.failed += 1
            self._outage.failed()
            self._failed(_classified(error, f"{self.name} cannot be made", self._where), error)
        else:
            self._making.discard(_this_task())
            self.counts.made += 1
            self._outage.passed()
            self._idle.append(Loan(resource, idle_since=self._loop.time()))

    def _failed(self, told: BaseException, cause: BaseException) -> None:
        """Tells whoever must know that one could not be made."""
        told.__cause__ = cause
        if self._idle or self._used or not self._waiters:
            logger.warning("%s: %s", self, visible(str(told)))  # those who wait may still get what others give back
            return
        # Nothing is left that could be given back: one failure is one borrower's, an outage everybody's.
        for _ in range(len(self._waiters) if self._outage.lasts else 1):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(told)

    def _retire(self, loan: Loan) -> None:
        if loan.gone:
            return
        loan.gone = True
        self._used.discard(loan)
        self._start(self._close(loan.resource), self._closing)

    async def _close(self, resource: Resource) -> None:
        self.counts.closed += 1
        try:
            await _within(self._limits.step_seconds, resource.close())
        except Exception as error:  # noqa: BLE001  it is gone from the pool; what it left is found by its label
            logger.warning("%s: one could not be closed: %s", self, _said(error))

    async def _look_after(self) -> None:
        """While others wait, one that died in somebody's hands gives its place away at once."""
        while self._waiters:
            await asyncio.sleep(WATCH_SECONDS)
            for loan in list(self._used):
                if not await self.is_healthy(loan.resource) and not loan.gone and loan in self._used:
                    self.counts.died += 1
                    self._retire(loan)

    def _start(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)

        def ended(_: object) -> None:
            tasks.discard(task)
            self._settle()

        task.add_done_callback(ended)

    async def _ended(self, tasks: set[asyncio.Task[None]]) -> None:
        """All of them, within their own limit and a little more, for one that does not heed its cancellation."""
        if not tasks:
            return
        _, late = await asyncio.wait(list(tasks), timeout=self._limits.step_seconds + 1.0)
        if late:
            logger.warning("%s: %d tasks have not ended in time", self, len(late))

    def _later(self, what: str, seconds: float, do: Callable[[], None]) -> None:
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()
        self._timers[what] = self._loop.call_later(seconds, do)


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def _within(seconds: float, work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await work


def _classified(error: Exception, what: str, where: str) -> Exception:
    """The error as whoever waits should see it: typed errors as they are, others as failures of infrastructure."""
    if isinstance(error, RolloutError | UserError):
        return error
    return InfrastructureError(f"{what}: {_said(error)}", where=where)


def _said(error: Exception) -> str:
    return visible(str(error)) or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__)
