"""Resources that do what a schedule says, and write down whatever must not happen."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from agentfly_lib.resources import PoolLimits


def no_trouble(what: str, number: int) -> float:
    return 0.0


@dataclass
class World:
    """All fake resources of one test."""

    fate: Callable[[str, int], float] = no_trouble
    """How long step `what` of resource `number` takes; negative: it fails after so long. For `dies`: when it dies after
    its making, 0 for never."""
    made: list[Fake] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    most: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    pending: int = 0

    @property
    def alive(self) -> int:
        return self.pending + sum(not fake.closed for fake in self.made)

    async def step(self, what: str, number: int) -> None:
        seconds = self.fate(what, number)
        await asyncio.sleep(abs(seconds))
        if seconds < 0:
            raise OSError(f"{what} of {number} fails")


class Fake:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.episode: str | None = None
        self.closed = False
        self.steps = 0
        self.dead = False
        if (seconds := world.fate("dies", number)) > 0:
            asyncio.get_running_loop().call_later(seconds, self.die)

    def die(self) -> None:
        self.dead = True

    async def begin(self, episode: str) -> None:
        assert not self.closed
        assert self.steps == 0, "two steps at once"
        self.steps += 1
        try:
            await self.world.step("begin", self.number)
        finally:
            self.steps -= 1
        self.world.begun.append(episode)
        self.episode = episode

    async def healthy(self) -> bool:
        await self.world.step("healthy", self.number)
        return not self.dead

    async def close(self) -> None:
        try:
            await self.world.step("close", self.number)
        finally:
            self.closed = True


@dataclass(frozen=True)
class FakeSpec:
    world: World = field(compare=False)
    pool: PoolLimits = field(default_factory=PoolLimits)
    argument: str = ""

    def check(self) -> None: ...

    async def create(self) -> Fake:
        number = next(self.world.numbers)
        self.world.pending += 1
        self.world.most = max(self.world.most, self.world.alive)
        try:
            await self.world.step("create", number)
            fake = Fake(self.world, number)
            self.world.made.append(fake)
        finally:
            self.world.pending -= 1
        return fake
