"""Groups without a signal are replaced: judged by the raw outcome, a bounded number of times, the same after a kill."""

import asyncio
import os

import pytest

from agentfly_lib.configs import RewardConfig, SignalSamplingConfig
from agentfly_lib.errors import RewardError
from agentfly_lib.rewards import CompositeReward, Part, Reward
from agentfly_lib.rewards.stage import score_step
from agentfly_lib.rollout import collect_with_signal, dynamic
from agentfly_lib.rollout.dynamic import groups_with_signal
from agentfly_lib.store import Score, changes
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.ledger import step_balance
from agentfly_lib.store.manifest import read_rollout_manifest
from agentfly_lib.store.scored import load_scored_groups, scores_so_far
from agentfly_lib.types import Outcome, Trajectory


def right(trajectory: Trajectory) -> float:
    return float(trajectory.final_response == "yes")


def shape(trajectory: Trajectory) -> float:
    """A length penalty: no two chains that differ have the same."""
    return -0.01 * trajectory.num_sampled - 0.001 * trajectory.chain


RIGHT = Reward(name="right", function=right, inline=True)
SHAPED = CompositeReward(
    name="shaped", parts=(Part(reward=RIGHT), Part(reward=Reward(name="shape", function=shape, inline=True)))
)


def replies(world, mixed: set[str]):
    """In the groups named the first chain is right and the second wrong; elsewhere both are right."""
    return world.by_place(lambda group, chain, turn: "no" if group in mixed and chain else "yes")


async def collect(world, path, mixed, *, wanted=3, reward=RIGHT, outcome=None, available=20, seconds=120.0, **options):
    """Collection and scoring side by side, as in the flow."""
    directory, problems = StepDirectory(path), world.problems(available)
    store = world.open_store(path, problems[:wanted])
    generate = replies(world, mixed)

    async def once(asked, seconds):
        return await world.gather(generate, asked, store, finish=False)

    async with asyncio.TaskGroup() as tasks:
        scoring = tasks.create_task(
            score_step(directory, reward, config=RewardConfig(name=reward.name), follow_seconds=120)
        )
        collecting = tasks.create_task(
            collect_with_signal(
                store,
                directory,
                problems,
                wanted=wanted,
                config=SignalSamplingConfig(**options),
                outcome=outcome,
                collect_round=once,
                seconds=seconds,
            )
        )
    assert scoring.result().manifest.complete
    return (*collecting.result(), generate)


async def test_as_many_are_asked_for_as_are_missing(world, tmp_path):
    # 0, 1, 2: one has a signal, two are missing; 3, 4: one, one is missing; 5: it has one.
    collected, report, _ = await collect(world, tmp_path, {"0-1", "0-4", "0-5", "0-6"})
    assert (report.groups, report.with_signal, report.refills, report.stopped) == (6, 3, 2, None)
    assert collected.manifest.refills == (2, 1)
    assert collected.manifest.group_ids == tuple(f"0-{index}" for index in range(6))
    assert collected.seconds.total > 0
    groups = load_scored_groups(StepDirectory(tmp_path))
    assert [group.id for group in groups] == [f"0-{index}" for index in range(6)]
    balance = step_balance(StepDirectory(tmp_path))
    assert balance.balanced
    assert (balance.requested, balance.scored) == (12, 12)


async def test_enough_at_once_asks_for_nothing(world, tmp_path):
    _, report, generate = await collect(world, tmp_path, {"0-0", "0-1", "0-2"})
    assert (report.refills, report.with_signal) == (0, 3)
    assert len(generate.requests) == 6


async def test_it_ends_after_the_refills_that_are_allowed_and_says_so(world, tmp_path, caplog):
    _, report, _ = await collect(world, tmp_path, {"0-0"}, max_refills=2)
    assert (report.groups, report.with_signal, report.refills) == (3 + 2 + 2, 1, 2)
    assert "2 refills were made" in report.stopped
    assert "training on 1 groups with a signal instead of 3" in caplog.text
    assert report.metrics["rollout/dynamic_incomplete/count"] == 1


async def test_it_ends_when_there_are_no_more_problems(world, tmp_path):
    _, report, _ = await collect(world, tmp_path, set(), available=4)
    assert (report.groups, report.stopped) == (4, "all 4 problems were asked for")


async def test_it_ends_when_the_time_is_over(world, tmp_path):
    _, report, _ = await collect(world, tmp_path, set(), seconds=0.0)
    assert report.groups == 3
    assert "time of the collection is over" in report.stopped
    assert read_rollout_manifest(StepDirectory(tmp_path)).complete


async def test_it_is_the_raw_outcome_that_counts(world, tmp_path):
    """The shaped rewards of any two chains differ, so each group would pass."""
    _, report, _ = await collect(world, tmp_path / "raw", {"0-1"}, reward=SHAPED, outcome="right", max_refills=1)
    assert (report.with_signal, report.groups) == (1, 5)
    _, report, _ = await collect(world, tmp_path / "shaped", {"0-1"}, reward=SHAPED, max_refills=1)
    assert (report.with_signal, report.groups) == (3, 3)
    with pytest.raises(ExceptionGroup) as caught:
        await collect(world, tmp_path / "typo", {"0-1"}, reward=SHAPED, outcome="rigth")
    (error,) = caught.value.exceptions
    assert isinstance(error, RewardError)
    assert "its parts are right, shape" in str(error)


async def test_a_killed_collection_goes_on_to_the_same_groups(world, tmp_path):
    mixed = {"0-1", "0-4", "0-5", "0-6"}
    whole, _, _ = await collect(world, tmp_path / "whole", mixed)
    # Killed in the middle of the first refill: of two further groups one was stored.
    problems = world.problems(20)
    store = world.open_store(tmp_path / "killed", problems[:3])
    await world.gather(replies(world, mixed), problems[:3], store, finish=False)
    store.extend(["0-3", "0-4"])
    await world.gather(replies(world, mixed), problems[:5], store, finish=False)
    killed = world.open_store(tmp_path / "killed", problems[:3])
    assert killed.manifest.refills == (2,)
    collected, report, generate = await collect(world, tmp_path / "killed", mixed)
    assert collected.manifest.group_ids == whole.manifest.group_ids
    assert collected.manifest.refills == whole.manifest.refills
    assert report.refills == 2
    assert {request.request_id[:3] for request in generate.requests} == {"0-5"}


async def test_waiting_for_a_slow_judge_costs_few_looks_at_the_disk(world, tmp_path, monkeypatch):
    """Each is a round trip on a network file system."""
    looks = []
    manifest, stat, scores = StepDirectory(tmp_path).rollout_manifest, os.stat, dynamic.scores_so_far

    def noted_stat(path, **given):
        if path == manifest:
            looks.append(path)
        return stat(path, **given)

    monkeypatch.setattr(dynamic, "scores_so_far", lambda directory: looks.append(directory) or scores(directory))
    monkeypatch.setattr(os, "stat", noted_stat)
    monkeypatch.setattr(changes, "LOOK_SECONDS", 1e6)  # however long it takes, a look follows a change

    async def slow(trajectory: Trajectory) -> float:
        await asyncio.sleep(0.6)
        return right(trajectory)

    _, report, _ = await collect(world, tmp_path, {"0-0", "0-1", "0-2"}, reward=Reward(name="slow", function=slow))
    assert report.with_signal == 3
    assert len(looks) < 15


def score(name, reward, **parts):
    outcome = Outcome.SCORED if reward is not None else Outcome.DROPPED
    return Score(trajectory_id=name, outcome=outcome, reward=reward, parts=parts)


def test_what_could_not_be_scored_is_no_outcome():
    scores = {
        "one left": [score("a/0", 1.0), score("a/1", None)],
        "two left": [score("b/0", 1.0), score("b/1", None), score("b/2", 0.0)],
        "equal": [score("c/0", 0.5), score("c/1", 0.5 + 5e-9)],
        "none": [],
    }
    assert groups_with_signal(scores, None) == {"two left"}


async def test_scores_so_far_wait_for_every_part(world, tmp_path):
    directory, problems = StepDirectory(tmp_path), world.problems(2)
    store = world.open_store(tmp_path, problems)
    assert scores_so_far(directory) == {}
    await world.gather(replies(world, {"0-0"}), problems, store)
    assert scores_so_far(directory) is None
    await score_step(directory, RIGHT, config=RewardConfig(name="right"), follow_seconds=60)
    found = scores_so_far(directory)
    assert {name: [each.reward for each in of_group] for name, of_group in found.items()} == {
        "0-0": [1.0, 0.0],
        "0-1": [1.0, 1.0],
    }
