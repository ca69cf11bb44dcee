"""Leases: whose a resource is, when it begins anew, who waits for whom, and that nothing is left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from agentfly_lib.errors import ConfigError, InfrastructureError, SandboxUnavailableError
from agentfly_lib.resources import (
    PooledSpec,
    PoolLimits,
    PoolScope,
    ResourceEngine,
    ResourceScope,
    ResourceSpec,
    counted_since,
)
from agentfly_lib.resources.pool import Pool
from benchmarks.virtual_time import EverybodyWaits, run
from tests.resources.fakes import Fake, FakeSpec, World


def limits(**changes) -> PoolLimits:
    return PoolLimits(start_seconds=10, step_seconds=10, **changes)


def broken(*steps: str):
    """A fate: these steps fail, for every resource."""
    return lambda what, number: -0.001 if what in steps else 0.0


async def use(engine: ResourceEngine, spec: FakeSpec, trajectory: str, seconds: float = 1.0) -> Fake:
    async with engine.lease(spec, trajectory=trajectory) as fake:
        await asyncio.sleep(seconds)
        return fake


def test_a_fake_spec_is_a_pooled_one_and_no_other():
    assert isinstance(FakeSpec(World()), PooledSpec)
    assert not isinstance(FakeSpec(World()), ResourceSpec)


class TestKeys:
    def test_one_trajectory_and_equal_specs_share_it(self):
        async def story():
            world = World()
            async with (
                ResourceEngine() as engine,
                engine.lease(FakeSpec(world), trajectory="a") as one,
                engine.lease(FakeSpec(world), trajectory="a") as two,
            ):
                assert one is two
            assert [fake.closed for fake in world.made] == [True]

        run(story())

    def test_another_argument_is_another_resource(self):
        async def story():
            world = World()
            async with ResourceEngine() as engine, AsyncExitStack() as stack:
                specs = [FakeSpec(world), FakeSpec(world, argument="x"), FakeSpec(world, limits(cap=3))]
                found = [await stack.enter_async_context(engine.lease(spec, trajectory="a")) for spec in specs]
                assert len(set(found)) == 3

        run(story())

    def test_another_never_gets_what_this_spec_has_given_back(self):
        async def story():
            world = World()
            async with ResourceEngine() as engine:
                one = await use(engine, FakeSpec(world, argument="x"), "a")
                assert await use(engine, FakeSpec(world, argument="y"), "b") is not one
                assert await use(engine, FakeSpec(world, argument="x"), "c") is one

        run(story())

    def test_two_trajectories_share_nothing(self):
        async def story():
            spec = FakeSpec(World())
            async with ResourceEngine() as engine:
                assert len(set(await asyncio.gather(use(engine, spec, "a"), use(engine, spec, "b")))) == 2

        run(story())

    def test_two_scopes_of_one_name_share_nothing(self):
        async def story():
            spec = FakeSpec(World())
            async with ResourceEngine() as engine:
                scopes = [ResourceScope(engine, "0/0"), ResourceScope(engine, "0/0")]
                one, two = [await scope.get(spec) for scope in scopes]
                assert one is not two
                assert one.episode != two.episode
                for scope in scopes:
                    await scope.aclose()

        run(story())


class TestShared:
    def test_it_serves_all_and_begins_once(self):
        async def story():
            world = World()
            spec = FakeSpec(world, limits(scope=PoolScope.SHARED))
            async with ResourceEngine() as engine:
                first = await use(engine, spec, "a")
                assert await asyncio.gather(*(use(engine, spec, name) for name in "bcd")) == [first] * 3
                assert len(world.begun) == 1
            assert world.made[0].closed

        run(story())

    def test_one_that_died_is_replaced_for_those_who_come(self):
        async def story():
            world = World()
            spec = FakeSpec(world, limits(scope=PoolScope.SHARED))
            async with ResourceEngine() as engine:
                async with engine.lease(spec, trajectory="a") as old:
                    old.die()
                    new = await use(engine, spec, "b")
                    assert new is not old
                    assert not old.closed, "somebody still has it"
                assert await use(engine, spec, "c") is new
                await asyncio.sleep(spec.pool.idle_seconds + 1)
                assert old.closed

        run(story())


class TestWaiting:
    def test_in_the_order_of_asking(self):
        async def story():
            world = World()
            spec = FakeSpec(world, limits(cap=2))
            async with ResourceEngine() as engine:
                await asyncio.gather(*(use(engine, spec, str(number), seconds=1 + number % 3) for number in range(20)))
                assert [token.partition("#")[0] for token in world.begun] == [str(number) for number in range(20)]
                assert world.most == 2
                assert engine.metrics()["resources/lent/count"] == 20

        run(story())

    def test_a_dead_one_in_use_gives_its_place_to_who_waits(self):
        async def story():
            world = World(lambda what, number: 1.0 if (what, number) == ("dies", 0) else 0.0)
            spec = FakeSpec(world, limits(cap=1))
            async with ResourceEngine() as engine, engine.lease(spec, trajectory="holds it for ever") as dead:
                async with engine.lease(spec, trajectory="b") as alive:
                    assert alive is not dead
                    assert dead.closed
                assert engine.metrics()["resources/died/count"] == 1

        run(story())

    def test_a_dead_one_that_comes_back_is_replaced(self):
        async def story():
            spec = FakeSpec(World(), limits(cap=1))
            async with ResourceEngine() as engine:
                dead = await use(engine, spec, "a")
                dead.die()
                assert await use(engine, spec, "b") is not dead

        run(story())

    def test_who_gives_up_leaves_the_queue(self):
        async def story():
            spec = FakeSpec(World(), limits(cap=1))
            async with ResourceEngine() as engine:
                async with engine.lease(spec, trajectory="a"):
                    with pytest.raises(InfrastructureError, match=r"no FakeSpec \(1 of 1 in use.*\) within 3 s"):
                        async with engine.lease(spec, trajectory="b", timeout=3):
                            pytest.fail("there was none")
                    waiting = asyncio.ensure_future(use(engine, spec, "c"))
                    await asyncio.sleep(1)
                    waiting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waiting
                await use(engine, spec, "d")

        run(story())

    def test_who_gives_up_in_the_instant_of_his_turn_passes_it_on(self):
        async def story():
            pool = Pool(FakeSpec(World(), limits(cap=1)))
            loan = await pool.borrow("a")
            waiting = asyncio.ensure_future(pool.borrow("b"))
            await asyncio.sleep(1)
            pool.give_back(loan)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await pool.borrow("c")).resource is loan.resource
            await pool.aclose()

        run(story())

    def test_seconds_are_counted(self):
        async def story():
            world = World(lambda what, number: 2.0 if what == "create" else 0.0)
            spec = FakeSpec(world, limits(cap=1))
            async with ResourceEngine() as engine:
                await asyncio.gather(use(engine, spec, "a", seconds=5), use(engine, spec, "b"))
                metrics = engine.metrics()
            assert metrics["resources/wait_seconds/sum"] == 2 + 7
            assert metrics["resources/wait_seconds/max"] == 7

        run(story())


class TestCircles:
    def test_the_one_who_would_close_a_circle_is_told(self):
        """Each holds what the other waits for."""

        async def story():
            world = World()
            x, y = (FakeSpec(world, limits(cap=1), argument) for argument in "xy")
            async with ResourceEngine() as engine:

                async def both(name: str, first: FakeSpec, second: FakeSpec) -> str:
                    async with engine.lease(first, trajectory=name):
                        await asyncio.sleep(1)
                        try:
                            async with engine.lease(second, trajectory=name):
                                return "had both"
                        except InfrastructureError as error:
                            return str(error)

                one, two = await asyncio.gather(both("a", x, y), both("b", y, x))
            assert one == "had both"
            assert "whose users all wait" in two

        run(story())

    def test_who_waits_for_one_that_goes_on_waits(self):
        async def story():
            world = World()
            x, y = (FakeSpec(world, limits(cap=1), argument) for argument in "xy")
            async with ResourceEngine() as engine, asyncio.timeout(100):
                goes_on = asyncio.ensure_future(use(engine, y, "c", seconds=5))
                await asyncio.sleep(1)
                async with engine.lease(x, trajectory="a"), engine.lease(y, trajectory="a"):
                    await goes_on

        run(story())


class TestTrouble:
    def test_one_that_cannot_be_made_is_a_failure_of_infrastructure(self):
        async def story():
            async with ResourceEngine() as engine:
                with pytest.raises(InfrastructureError, match="FakeSpec cannot be made: create of 0 fails") as caught:
                    await use(engine, FakeSpec(World(broken("create"))), "a")
                assert caught.value.where == "resource:FakeSpec"

        run(story())

    def test_what_the_user_must_mend_is_told_as_it_is(self):
        class Missing(FakeSpec):
            async def create(self) -> Fake:
                raise SandboxUnavailableError("install it")

        async def story():
            async with ResourceEngine() as engine:
                with pytest.raises(SandboxUnavailableError, match="install it"):
                    await use(engine, Missing(World()), "a")

        run(story())

    def test_an_outage_is_not_hammered_and_ends(self):
        """A minute in which none can be made: it is tried ever less often, and then all get theirs."""
        tries: list[float] = []

        def fate(what: str, number: int) -> float:
            if what != "create":
                return 0.0
            tries.append(asyncio.get_running_loop().time())
            return -0.01 if tries[-1] < 60 else 0.01

        async def story():
            spec = FakeSpec(World(fate), limits(cap=4))
            async with ResourceEngine() as engine:
                refused = 0
                while True:
                    ends = await asyncio.gather(
                        *(use(engine, spec, str(number)) for number in range(64)), return_exceptions=True
                    )
                    assert all(isinstance(end, Fake | InfrastructureError) for end in ends)
                    refused += sum(isinstance(end, InfrastructureError) for end in ends)
                    if not any(isinstance(end, InfrastructureError) for end in ends):
                        break
            assert refused
            assert asyncio.get_running_loop().time() < 200, "nobody has waited for his own limit"
            assert len([at for at in tries if at < 60]) < 15

        run(story())

    def test_what_lives_is_lent_through_an_outage(self):
        async def story():
            world = World(lambda what, number: -0.01 if what == "create" and number else 0.0)
            spec = FakeSpec(world, limits(cap=4))
            async with ResourceEngine() as engine:
                found = await asyncio.gather(*(use(engine, spec, str(number)) for number in range(10)))
            assert set(found) == {world.made[0]}

        run(story())

    def test_one_that_does_not_begin_again_is_replaced(self):
        async def story():
            used: list[int] = []

            def fate(what: str, number: int) -> float:
                if what == "begin":
                    used.append(number)
                    return -0.01 if used.count(number) == 2 else 0.0
                return 0.0

            spec = FakeSpec(World(fate), limits(cap=1))
            async with ResourceEngine() as engine:
                assert [(await use(engine, spec, name)).number for name in "abc"] == [0, 1, 2]

        run(story())

    def test_dead_on_arrival_again_and_again_is_told(self):
        async def story():
            async with ResourceEngine() as engine:
                with pytest.raises(InfrastructureError, match="dead before their first use"):
                    await use(engine, FakeSpec(World(broken("healthy"))), "a")

        run(story())

    def test_one_that_does_not_close_costs_no_other(self, caplog):
        async def story():
            world = World(broken("close"))
            spec = FakeSpec(world, limits(cap=1, episodes=1))
            async with ResourceEngine() as engine:
                assert [(await use(engine, spec, name)).number for name in "abc"] == [0, 1, 2]

        run(story())
        assert "could not be closed: close of 0 fails" in caplog.text


class TestEnds:
    def test_closed_on_error_and_on_cancellation(self):
        async def story():
            world = World()
            spec = FakeSpec(world, limits(idle_seconds=0))
            async with ResourceEngine() as engine:
                with pytest.raises(ZeroDivisionError):
                    async with engine.lease(spec, trajectory="a"):
                        raise ZeroDivisionError
                working = asyncio.ensure_future(use(engine, spec, "b", seconds=1000))
                await asyncio.sleep(1)
                working.cancel()
                await asyncio.sleep(1)
                assert [fake.closed for fake in world.made] == [True, True]

        run(story())

    def test_the_end_of_the_engine_closes_what_is_lent_and_refuses_who_comes(self):
        async def story():
            world = World(lambda what, number: 1.0 if what in ("create", "close") else 0.0)
            spec = FakeSpec(world, limits(cap=1))
            engine = ResourceEngine()
            working = asyncio.ensure_future(use(engine, spec, "a", seconds=1000))
            waiting = asyncio.ensure_future(use(engine, spec, "b"))
            await asyncio.sleep(2)
            await engine.aclose()
            assert [fake.closed for fake in world.made] == [True]
            with pytest.raises((InfrastructureError, asyncio.CancelledError)):
                await waiting
            working.cancel()
            with pytest.raises(InfrastructureError, match="is closed"):
                await use(engine, spec, "c")
            await engine.aclose()

        run(story())

    def test_own_ones_that_fail_or_hang_at_their_end_cost_no_pool_its_end(self, caplog):
        @dataclass(frozen=True)
        class Own:
            hangs: bool

            def check(self) -> None: ...

            @asynccontextmanager
            async def open(self) -> AsyncIterator[str]:
                yield "own"
                if self.hangs:
                    await asyncio.Event().wait()
                raise OSError("the server is gone")

        async def story():
            world = World()
            engine = ResourceEngine()
            async with AsyncExitStack() as stack:
                for spec in (FakeSpec(world), Own(hangs=False), Own(hangs=True)):
                    await stack.enter_async_context(engine.lease(spec, trajectory="a"))
                await engine.aclose()
                assert asyncio.get_running_loop().time() == 30
                assert [fake.closed for fake in world.made] == [True]
                stack.pop_all()  # its trajectory never ends

        run(story())
        assert "the server is gone" in caplog.text
        assert "was given up" in caplog.text

    def test_idle_ones_are_closed_after_a_while_and_warm_ones_stay(self):
        async def story():
            world = World()
            spec = FakeSpec(world, limits(cap=8, warm=2, idle_seconds=30))
            async with ResourceEngine() as engine:
                engine.warm_up(spec)
                await asyncio.sleep(1)
                assert world.alive == 2
                await asyncio.gather(*(use(engine, spec, str(number)) for number in range(8)))
                assert world.alive == 8
                await asyncio.sleep(31)
                assert world.alive == 2
            assert world.alive == 0

        run(story())

    def test_one_that_has_served_its_episodes_is_replaced(self):
        async def story():
            spec = FakeSpec(World(), limits(cap=1, episodes=2))
            async with ResourceEngine() as engine:
                assert [(await use(engine, spec, name)).number for name in "abcd"] == [0, 0, 1, 1]

        run(story())


def test_what_opens_itself_is_leased_too():
    @dataclass(frozen=True)
    class Own:
        log: list[str] = field(compare=False)

        def check(self) -> None: ...

        @asynccontextmanager
        async def open(self) -> AsyncIterator[str]:
            self.log.append("open")
            yield "it"
            self.log.append("closed")

    async def story():
        log: list[str] = []
        async with ResourceEngine() as engine:
            async with engine.lease(Own(log), trajectory="a") as one, engine.lease(Own(log), trajectory="a") as two:
                assert one == two == "it"
            async with engine.lease(Own(log), trajectory="b"):
                pass
        assert log == ["open", "closed"] * 2

    run(story())


@pytest.mark.parametrize(
    ("values", "key"),
    [({"warm": -1}, "pool.warm"), ({"cap": 0}, "pool.cap"), ({"cap": 1, "warm": 2}, "pool.cap"),
     ({"episodes": 0}, "pool.episodes"), ({"idle_seconds": -1.0}, "pool.idle_seconds"),
     ({"start_seconds": 0.0}, "pool.start_seconds")],
)  # fmt: skip
def test_limits_that_cannot_be_name_the_key(values, key):
    with pytest.raises(ConfigError, match=key):
        PoolLimits(**values)


def test_virtual_time_tells_a_deadlock():
    async def story():
        await asyncio.Event().wait()

    with pytest.raises(EverybodyWaits):
        run(story())


def test_what_was_counted_between_two_looks():
    before = {"resources/made/count": 2.0, "resources/alive/max": 2.0}
    now = {"resources/made/count": 5.0, "resources/alive/max": 3.0, "resources/lent/count": 4.0}
    assert counted_since(before, now) == {
        "resources/made/count": 3.0,
        "resources/alive/max": 3.0,
        "resources/lent/count": 4.0,
    }
