"""Environments as resources, and an episode as a trajectory's session."""

from __future__ import annotations

import asyncio

import pytest

from agentfly_lib.envs.session import EnvironmentSession
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import ConfigError, EnvironmentFailure
from agentfly_lib.resources import PooledSpec, ResourceEngine

ANT = {"word": "ant", "first_observation": "calm ant"}


def test_equal_specs_are_one_key_and_others_are_not(odd) -> None:
    spec = environment_spec(odd.KIND, {"mood": "merry"})
    assert spec == environment_spec("odd_environments:KIND", {"mood": "merry"})
    assert hash(spec) == hash(environment_spec("odd_environments:KIND", {"mood": "merry"}))
    others = [
        environment_spec(odd.KIND),
        environment_spec(odd.KIND, {"mood": "merry"}, place="thread"),
        environment_spec(odd.KIND, {"mood": "merry"}, cap=3),
        environment_spec(odd.IMPATIENT, {"mood": "merry"}),
    ]
    assert len({spec, *others}) == 5
    assert isinstance(spec, PooledSpec)


def test_a_pool_waits_longer_than_the_instance_itself(odd) -> None:
    spec = environment_spec(odd.KIND, warm=1, cap=4)
    assert (spec.pool.warm, spec.pool.cap) == (1, 4)
    assert spec.pool.start_seconds > odd.KIND.start_seconds
    assert spec.pool.step_seconds > odd.KIND.step_seconds


def test_what_cannot_run_here_is_said_before_anything_runs(odd) -> None:
    def refuse(settings) -> None:
        raise ConfigError(f"install odd to be {settings.mood}")

    with pytest.raises(ConfigError, match="install odd to be merry"):
        environment_spec(odd.kind(check=refuse), {"mood": "merry"}, place="thread").check()
    with pytest.raises(ConfigError, match="cannot import it"):
        environment_spec(odd.kind()).check()
    environment_spec(odd.kind(), place="thread").check()
    environment_spec(odd.KIND).check()


async def test_a_pool_gives_an_instance_to_the_next_trajectory_and_replaces_a_dead_one(odd) -> None:
    spec = environment_spec(odd.THREAD, warm=1, cap=1)
    async with ResourceEngine() as engine:
        async with engine.lease(spec, trajectory="0") as first:
            session = EnvironmentSession(spec.kind, first, {"word": "ant"})
            await session.step("go")
        async with engine.lease(spec, trajectory="1") as second:
            assert second is first
            session = EnvironmentSession(spec.kind, second, {"word": "bee"})
            assert (await session.step("go")).step.observation == "1: go"
            with pytest.raises(EnvironmentFailure):
                await session.step("raise")
        async with engine.lease(spec, trajectory="2") as third:
            assert third is not first


async def test_rewards_add_up_and_the_end_is_the_end(odd) -> None:
    async with environment_spec(odd.THREAD).open() as instance:
        session = EnvironmentSession(odd.THREAD, instance, ANT)
        totals = [(await session.step("go")).total for _ in range(3)]
        assert totals == [0.25, 0.5, 0.75]
        assert session.done
        late = await session.step("go")
        assert late.step.error == "The episode is over; nothing can be done any more."
        assert (late.total, late.step.done, session.steps) == (0.75, True, 3)


async def test_steps_of_one_turn_are_done_in_their_order(odd) -> None:
    async with environment_spec(odd.THREAD).open() as instance:
        session = EnvironmentSession(odd.THREAD, instance, ANT)
        done = await asyncio.gather(*(session.step(f"go {n}") for n in range(4)))
    assert [each.step.observation for each in done[:3]] == ["1: go 0", "2: go 1", "3: go 2"]
    assert [each.total for each in done] == [0.25, 0.5, 0.75, 0.75]
    assert done[3].step.error


async def test_an_episode_that_is_not_the_prompts_is_named(odd) -> None:
    async with environment_spec(odd.THREAD, {"mood": "merry"}).open() as instance:
        session = EnvironmentSession(odd.THREAD, instance, ANT)
        with pytest.raises(EnvironmentFailure, match="differs from character 0 on, 'merry ant' in place of 'calm ant'"):
            await session.step("go")
        longer = EnvironmentSession(odd.THREAD, instance, {**ANT, "first_observation": "merry ant and more"})
        with pytest.raises(EnvironmentFailure, match="differs from character 9 on"):
            await longer.step("go")
        blind = EnvironmentSession(odd.BLIND, instance, ANT)
        assert (await blind.step("go")).total == 0.25


async def test_half_a_surrogate_reaches_no_environment(odd) -> None:
    async with environment_spec(odd.THREAD).open() as instance:
        session = EnvironmentSession(odd.THREAD, instance, ANT)
        assert (await session.step("go \ud800!")).step.observation == "1: go ?!"
