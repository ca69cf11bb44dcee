"""Small rewards beside the main one: form, tool use, length, and what an environment gave."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from agentfly_lib.configs import RewardConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards import build_reward, environment, format_followed, overlong, score_groups, tool_use
from agentfly_lib.rewards.format import tags_in_order
from agentfly_lib.types import FinishReason, Outcome, Segment, Trajectory, Turn


async def values(made, group):
    scores = await score_groups(made, [group], timeout=20.0, max_concurrency=8, retries=0)
    return [score.reward for score in scores]


class TestFormat:
    @pytest.mark.parametrize(
        ("text", "followed"),
        [
            ("<think>so</think><answer>4</answer>", True),
            ("Hm. <think>so\nso</think>\n\n<answer>4</answer>.", True),
            ("<answer>4</answer><think>so</think>", False),
            ("<think>so</think>", False),
            ("<think></think><answer>4</answer>", False),
            ("<think>so</think><answer> \n</answer>", False),
            ("<think>so</think><answer>4</answer><answer>5</answer>", False),
            ("<think>a<think>so</think><answer>4</answer>", False),
            ("<think>so<answer>4</think></answer>", False),
            ("</think>so<think><answer>4</answer>", False),
            ("", False),
        ],
    )
    def test_tags_in_order(self, text, followed):
        assert tags_in_order(text, ("think", "answer")) is followed

    async def test_tags_of_the_last_turn(self, make_group):
        made = format_followed(tags=("think", "answer"))
        assert await values(made, make_group("<think>a</think><answer>b</answer>", "b")) == [1.0, 0.0]

    async def test_a_pattern_is_matched_as_a_whole(self, make_group):
        made = format_followed(pattern=r"Thought: .*\nFinal Answer: \d+")
        group = make_group("Thought: a\nb\nFinal Answer: 4", "Final Answer: 4", "Thought: a\nFinal Answer: 4 ok")
        assert await values(made, group) == [1.0, 0.0, 0.0]

    async def test_a_pattern_that_backtracks_for_ever_is_not_matched(self, make_group, monkeypatch):
        monkeypatch.setattr(sys.modules["agentfly_lib.rewards.format"], "PATTERN_SECONDS", 0.5)
        made = format_followed(pattern=r"(a+)+")
        await values(made, make_group("a"))  # a worker is up
        scores = await score_groups(
            made, [make_group("a" * 60 + "b", "aaa")], timeout=20.0, max_concurrency=2, retries=0
        )
        assert [(s.outcome, s.reward) for s in scores] == [(Outcome.SCORED, 0.0), (Outcome.SCORED, 1.0)]

    def test_a_pattern_that_is_none(self):
        with pytest.raises(ConfigError, match="is not a regular expression"):
            format_followed(pattern="(")

    async def test_calls_of_every_turn_can_be_read(self, make_group):
        good = '<tool_call>{"name": "x", "arguments": {}}</tool_call>'
        group = make_group(good, "no call", "<tool_call>{oops}</tool_call>", good.removesuffix("</tool_call>"))
        assert await values(format_followed(), group) == [1.0, 1.0, 0.0, 0.0]

    async def test_calls_in_another_format(self, make_group):
        made = build_reward(RewardConfig(name="format", settings={"parser": "mistral"}))
        group = make_group('[TOOL_CALLS]x[ARGS]{"a": 1}', "no call", "[TOOL_CALLS]x[ARGS]{oops")
        assert await values(made, group) == [1.0, 1.0, 0.0]
        with pytest.raises(ConfigError, match=r"unknown tool-call parser 'hermess': did you mean 'hermes'\?"):
            format_followed(parser="hermess")

    async def test_all_turns_if_asked_for(self, make_group):
        group = make_group("<a>1</a>")
        (trajectory,) = group.trajectories
        bad = _with_turns(trajectory, "nothing", "<a>1</a>")
        good = _with_turns(trajectory, "<a>0</a>", "<a>1</a>")
        group = dataclasses.replace(group, trajectories=(bad, good))
        assert await values(format_followed(tags=("a",)), group) == [1.0, 1.0]
        assert await values(format_followed(tags=("a",), turns="all"), group) == [0.0, 1.0]

    async def test_a_turn_that_was_cut_does_not_follow(self, make_group):
        group = make_group("fine")
        cut = _with_turns(group.trajectories[0], "fine", finish=FinishReason.LENGTH)
        assert await values(format_followed(), dataclasses.replace(group, trajectories=(cut,))) == [0.0]

    async def test_in_a_recipe(self, make_group):
        made = build_reward(RewardConfig(name="format", settings={"tags": ["a"], "turns": "all"}))
        assert await values(made, make_group("<a>1</a>", "1")) == [1.0, 0.0]


def _with_turns(trajectory: Trajectory, *texts: str, finish: FinishReason = FinishReason.STOP) -> Trajectory:
    turns = tuple(
        Turn(message={"role": "assistant", "content": text}, start=1, end=1, sampled=True, finish=finish)
        for text in texts
    )
    segment = dataclasses.replace(trajectory.segments[0], turns=turns)
    return dataclasses.replace(trajectory, segments=(segment,))


def _sampled(trajectory: Trajectory, count: int) -> Trajectory:
    mask = np.arange(count + 1) > 0
    logprobs = np.where(mask, np.float32(-1), np.float32(np.nan))
    segment = Segment(token_ids=np.zeros(count + 1, np.int32), loss_mask=mask, logprobs=logprobs, turns=())
    return dataclasses.replace(trajectory, segments=(segment,))


@pytest.mark.parametrize(
    ("sampled", "value"),
    [(1, 0), (800, 0), (801, -0.005), (900, -0.5), (999, -0.995), (1000, -1), (1001, -1), (5000, -1)],
)
async def test_overlong_by_hand(make_group, sampled, value):
    """Limit 1000, buffer 200: 0 up to 800, then (800 - n) / 200."""
    group = make_group("x")
    group = dataclasses.replace(group, trajectories=(_sampled(group.trajectories[0], sampled),))
    assert await values(overlong(limit=1000, buffer=200), group) == [pytest.approx(value)]


def test_a_buffer_longer_than_the_limit():
    with pytest.raises(ConfigError, match="buffer=5 is more than limit=4"):
        overlong(limit=4, buffer=5)


@pytest.mark.parametrize(
    ("calls", "errors", "wanted", "value"),
    [(0, 0, 1, 0), (1, 0, 1, 1), (3, 0, 1, 1), (1, 1, 1, 0), (3, 2, 2, 0.5), (3, 1, 4, 0.5), (0, 0, 3, 0)],
)
async def test_tool_use(make_group, calls, errors, wanted, value):
    group = make_group("x")
    metrics = {"tool_calls": float(calls), "tool_errors": float(errors)}
    group = dataclasses.replace(group, trajectories=(dataclasses.replace(group.trajectories[0], metrics=metrics),))
    assert await values(tool_use(wanted=wanted), group) == [value]


async def test_a_recipe_may_say_what_a_chain_that_never_acted_is_worth(make_group):
    config = RewardConfig(name="environment_return", settings={"idle": -0.5})
    assert await values(build_reward(config), make_group("x", env_reward=0.25)) == [0.25]
    assert await values(build_reward(config), make_group("x")) == [-0.5]
    assert await values(build_reward(RewardConfig(name="environment_return")), make_group("x")) == [0.0]
    with pytest.raises(ConfigError, match=r"did you mean idle\?"):
        build_reward(RewardConfig(name="environment_return", settings={"idel": 1}))


async def test_a_chain_that_never_acted_has_no_reward_of_an_environment(make_group):
    assert await values(environment, make_group("x", env_reward=0.25)) == [0.25]
    assert await values(environment, make_group("x", env_reward=0.0)) == [0.0]
    (dropped,) = await score_groups(environment, [make_group("x")], timeout=1.0, max_concurrency=1, retries=0)
    assert (dropped.outcome, dropped.error) == (
        Outcome.DROPPED,
        "reward 'environment' returned None: it cannot be scored",
    )
