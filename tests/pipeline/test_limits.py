"""Limits of stages: above what they call, not growing with the run, and reached only with the key that raises them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.errors import EngineError, StageTimeout
from agentfly_lib.pipeline import limits
from agentfly_lib.pipeline.limits import Limit, within


@pytest.fixture
def recipe() -> Callable[..., RunConfig]:
    """`recipe(max_policy_lag=1)`: limits of 1, 10, 100, ... seconds, so that a sum tells what it is made of."""

    def make(**rollout: int) -> RunConfig:
        config = load_config(Path("recipes/ci.toml"))
        return config.model_copy(
            update={
                "inference": config.inference.model_copy(
                    update={"start_timeout_seconds": 1.0, "update_timeout_seconds": 10.0}
                ),
                "learner": config.learner.model_copy(
                    update={"start_timeout_seconds": 100.0, "update_timeout_seconds": 1e3}
                ),
                "rollout": config.rollout.model_copy(update={"stage_timeout_seconds": 1e6} | rollout),
                "evaluation": config.evaluation.model_copy(update={"greedy": True}),
            }
        )

    return make


def test_each_by_hand(recipe: Callable[..., RunConfig]) -> None:
    config = recipe()
    assert limits.start_engines(config) == Limit(seconds=2, key="inference.start_timeout_seconds")
    assert limits.start_workers(config) == Limit(seconds=202, key="learner.start_timeout_seconds")
    assert limits.sync(config, due=3) == Limit(seconds=202 + 4_000 + 30, key="learner.update_timeout_seconds")
    assert limits.update(config, due=0) == Limit(seconds=1_200, key="learner.update_timeout_seconds")
    assert limits.collect(config) == Limit(seconds=1e6 + 202 + 30, key="rollout.stage_timeout_seconds")
    assert limits.score(config) == Limit(seconds=2e6 + 60, key="rollout.stage_timeout_seconds")


def test_beside_others_a_stage_may_have_to_wait_for_them(recipe: Callable[..., RunConfig]) -> None:
    config = recipe(max_policy_lag=1)
    assert limits.collection(config).seconds == 3e6, "two evaluations may go on beside it, and are served first"
    queue = (3e6 + 2e6) + 1e3  # the collection before, an evaluation, sampled and greedy, and an update
    assert limits.collect(config).seconds == 3e6 + queue + 202 + 30
    assert limits.follow(config).seconds == 1e6 + queue + 60
    far = recipe(max_policy_lag=4)
    assert limits.collect(far).seconds > 5 * limits.collection(far).seconds, "four before it, and its own"
    assert limits.score(far).seconds > 5 * limits.collection(far).seconds


def test_a_limit_above_those_of_what_the_stage_calls(recipe: Callable[..., RunConfig]) -> None:
    config = recipe()
    start = config.inference.start_timeout_seconds + config.learner.start_timeout_seconds
    assert limits.start_workers(config).seconds > start, "one after the other, where they share GPUs"
    proven = 3 * config.inference.update_timeout_seconds  # woken, found unproven, sent
    assert limits.sync(config, due=0).seconds >= start + config.learner.update_timeout_seconds + proven
    assert limits.score(config).seconds > limits.collection(config).seconds


async def test_a_stage_ends_at_its_limit_and_says_what_raises_it() -> None:
    with pytest.raises(StageTimeout, match=r"^collect 3 was not done after 0 s; .* is kept.*raise rollout\.stage_time"):
        async with within(Limit(seconds=0.01, key="rollout.stage_timeout_seconds"), "collect 3"):
            await asyncio.Event().wait()


@pytest.mark.parametrize("own", [EngineError("died"), TimeoutError("a server was slow")])
async def test_a_stage_within_its_limit_keeps_its_own_errors(own: Exception) -> None:
    with pytest.raises(type(own), match=str(own)):
        async with within(Limit(seconds=10, key="a.key"), "collect 3"):
            raise own
