"""A group's reward sees all chains that did not fail, and answers for each of them."""

from __future__ import annotations

import numpy as np
import pytest

from agentfly_lib.errors import ConfigError, RewardError
from agentfly_lib.rewards import GroupReward, group_reward, score_groups
from agentfly_lib.types import Outcome, StopReason


async def score(made, *groups, retries=0):
    return await score_groups(made, groups, timeout=20.0, max_concurrency=8, retries=retries)


@group_reward(inline=True)
def length_rank(final_responses, trajectories, problem, answer, hint="none"):
    assert len(final_responses) == len(trajectories)
    assert (problem.id, answer, hint) == ("p", "4", "none")
    return [sorted(map(len, final_responses)).index(len(text)) for text in final_responses]


async def test_one_value_for_each_chain_in_order(make_group):
    scores = await score(length_rank, make_group("aaa", "a", "aa"), make_group("a"))
    assert [s.reward for s in scores] == [2.0, 0.0, 1.0, 0.0]
    assert [s.trajectory_id for s in scores] == ["0-0/0", "0-0/1", "0-0/2", "0-0/0"]


async def test_failed_chains_are_not_shown(make_group):
    stops = (StopReason.FINISHED, StopReason.FAILED, StopReason.MAX_TOKENS)
    scores = await score(length_rank, make_group("aaa", "", "aa", stops=stops))
    assert [(s.outcome, s.reward) for s in scores] == [
        (Outcome.SCORED, 1.0),
        (Outcome.FAILED, None),
        (Outcome.TRUNCATED, 0.0),
    ]
    only_failed = make_group("a", stops=(StopReason.FAILED,))
    assert [s.outcome for s in await score(length_rank, only_failed)] == [Outcome.FAILED]


async def test_a_plain_function_runs_in_a_worker(odd_rewards, make_group):
    scores = await score(odd_rewards.group_pid, make_group("a", "b"))
    assert scores[0].reward == scores[1].reward != 0


@pytest.mark.parametrize(
    ("value", "rewards", "errors"),
    [
        ([1, None], [1.0, None], [None, "reward 'g' returned None: it cannot be scored"]),
        (np.array([0.5, 1.5]), [0.5, 1.5], [None, None]),
        (({"reward": 1, "a": 2}, True), [1.0, 1.0], [None, None]),
        ([1], [None, None], ["reward 'g' returned 1 entries for 2 chains"] * 2),
        (None, [None, None], ["reward 'g' returned None: it cannot be scored"] * 2),
        (1.0, [None, None], ["reward 'g' returned a float, expected one entry for each of 2 chains"] * 2),
        ("ab", [None, None], ["reward 'g' returned a str, expected one entry for each of 2 chains"] * 2),
        (
            [1, "x"],
            [None, None],
            ["reward 'g': its result is a str, expected a number, a bool, a dict with 'reward'"] * 2,
        ),
    ],
)
async def test_results(make_group, value, rewards, errors):
    scores = await score(group_reward(name="g", inline=True)(lambda: value), make_group("a", "b"))
    assert [s.reward for s in scores] == rewards
    for scored, error in zip(scores, errors, strict=True):
        assert (scored.error or "").startswith(error or "")
        assert bool(scored.error) == bool(error)


async def test_an_error_is_tried_again_and_then_concerns_the_whole_group(make_group):
    tries = []

    @group_reward(name="g", inline=True)
    def fail(final_responses):
        tries.append(1)
        if final_responses == ["bad", "bad"]:
            raise OSError("down")
        return [1.0] * len(final_responses)

    scores = await score(fail, make_group("bad", "bad"), make_group("ok"), retries=2)
    assert [s.outcome for s in scores] == [Outcome.DROPPED, Outcome.DROPPED, Outcome.SCORED]
    assert scores[1].error == "reward 'g' failed: OSError: down"
    assert len(tries) == 4


def test_columns_are_checked_against_what_a_group_gives():
    length_rank.check_columns(["answer"])
    with pytest.raises(ConfigError, match=r"asks for the column 'final_response' \(did you mean 'final_responses'\?\)"):
        group_reward(lambda final_response: []).check_columns(["answer"])


def test_a_missing_column_is_named(make_group):
    group = make_group("a")
    made = group_reward(name="g")(lambda gold: [])
    assert isinstance(made, GroupReward)
    with pytest.raises(RewardError, match="reward 'g': problem p has no column 'gold'"):
        made.bind_group(group.trajectories, group.problem)
