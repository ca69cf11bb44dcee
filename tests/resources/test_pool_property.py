"""The pool under hundreds of random schedules, in virtual time: nobody is forgotten, and the cap is never passed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.errors import InfrastructureError
from agentfly_lib.resources import PoolLimits, ResourceEngine
from benchmarks.virtual_time import run
from tests.resources.fakes import Fake, FakeSpec, World

SECONDS = st.integers(0, 40).map(lambda tenths: tenths / 10)


@dataclass(frozen=True)
class Borrower:
    comes: float
    stays: float
    patience: float
    """Limit of its lease."""
    cancelled_after: float | None
    fails: bool


BORROWERS = st.lists(
    st.builds(
        Borrower,
        comes=SECONDS,
        stays=SECONDS,
        patience=st.sampled_from([0.3, 2.0, 1000.0]),
        cancelled_after=st.none() | SECONDS,
        fails=st.booleans(),
    ),
    min_size=1,
    max_size=24,
)


@st.composite
def limits(draw: st.DrawFn) -> PoolLimits:
    cap = draw(st.none() | st.integers(1, 5))
    return PoolLimits(
        cap=cap,
        warm=draw(st.integers(0, cap or 3)),
        episodes=draw(st.none() | st.integers(1, 3)),
        idle_seconds=draw(st.sampled_from([0.0, 1.0, 100.0])),
        start_seconds=3.0,
        step_seconds=2.0,
    )


async def play(
    engine: ResourceEngine,
    spec: FakeSpec,
    number: int,
    borrower: Borrower,
    users: dict[Fake, int],
    came: list[int] | None = None,
) -> str:
    await asyncio.sleep(borrower.comes)
    if came is not None:
        came.append(number)
    try:
        async with asyncio.timeout(borrower.cancelled_after):
            async with engine.lease(spec, trajectory=str(number), timeout=borrower.patience) as fake:
                assert fake not in users, "one resource, two trajectories"
                assert fake.episode.startswith(f"{number}#"), "it has not begun for this trajectory"
                users[fake] = number
                try:
                    await asyncio.sleep(borrower.stays)
                    assert fake.episode.startswith(f"{number}#"), "it has begun for another meanwhile"
                finally:
                    del users[fake]
                if borrower.fails:
                    raise ZeroDivisionError
        return "done"
    except TimeoutError:
        return "gave up"
    except ZeroDivisionError:
        return "failed"
    except InfrastructureError as error:
        return f"refused: {error}"


@settings(max_examples=250, deadline=None)
@given(limits=limits(), borrowers=BORROWERS, seed=st.integers(0, 2**32), faults=st.sampled_from([0.0, 0.1, 0.4]))
def test_every_borrower_ends_and_the_cap_holds(limits: PoolLimits, borrowers: list[Borrower], seed: int, faults: float):
    chance = random.Random(seed)

    def fate(what: str, number: int) -> float:
        """Each step takes its time, fails, or hangs for longer than its limit."""
        broken = chance.random() < faults
        if what == "dies":
            return chance.uniform(0.1, 5.0) if broken else 0.0
        seconds = chance.choice([0.0, 0.1, 0.5])
        return seconds if not broken else chance.choice([-0.0001, -seconds - 0.0001, 10_000.0])

    async def schedule() -> list[str]:
        async with ResourceEngine() as engine:
            users: dict[Fake, int] = {}
            ends = await asyncio.gather(
                *(play(engine, spec, number, borrower, users) for number, borrower in enumerate(borrowers))
            )
            for pool in engine._pools.values():
                assert (pool.in_use, pool.waiting) == (0, 0), "a place or a turn was lost"
            if limits.cap is not None:
                assert engine.metrics()["resources/alive/max"] <= limits.cap
            return ends

    world = World(fate)
    spec = FakeSpec(world, limits)
    ends = run(schedule())  # raises if nobody could ever wake up again
    assert len(ends) == len(borrowers)
    assert len(set(world.begun)) == len(world.begun)
    assert all(fake.closed for fake in world.made), "one was left open"
    if limits.cap is not None:
        assert world.most <= limits.cap
    if not faults:
        assert not [end for end in ends if end.startswith("refused") and "within" not in end]


@settings(max_examples=100, deadline=None)
@given(cap=st.integers(1, 4), borrowers=BORROWERS)
def test_who_comes_first_is_served_first(cap: int, borrowers: list[Borrower]):
    world = World()
    spec = FakeSpec(world, PoolLimits(cap=cap))

    came: list[int] = []

    async def schedule() -> None:
        async with ResourceEngine() as engine:
            users: dict[Fake, int] = {}
            await asyncio.gather(
                *(play(engine, spec, number, borrower, users, came) for number, borrower in enumerate(borrowers))
            )

    run(schedule())
    served = [int(token.partition("#")[0]) for token in world.begun]
    assert served == [number for number in came if number in served]
