"""A reward is given what it names, asks only for what there is, and returns what can be a reward."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from agentfly_lib.errors import ConfigError, RewardError
from agentfly_lib.rewards import get_reward, math_equal, reward
from agentfly_lib.rewards.reward import Verdict


@reward(name="x")
def agentfly_style(prediction, trajectory, answer):
    return float(prediction == answer)


def bound(function, make_group, **columns):
    group = make_group("four", env_reward=0.5, **columns)
    return reward(function).bind(group.trajectories[0], group.problem)


class TestDecorator:
    def test_a_reward_is_still_its_function(self):
        assert agentfly_style(prediction="4", trajectory=None, answer="4") == 1.0
        assert agentfly_style.name == "x"
        assert agentfly_style.__name__ == "agentfly_style"

    def test_bare_takes_the_functions_name(self):
        assert reward(lambda prediction: 1).name == "<lambda>"

    def test_arguments(self):
        made = reward(lambda prediction, answer, hint=None, **rest: 1)
        assert made.arguments == ("prediction", "answer", "hint")
        assert made.required == ("prediction", "answer")

    def test_positional_arguments_are_refused(self):
        with pytest.raises(ConfigError, match="the parameter rest cannot be given by name"):
            reward(lambda *rest: 1)

    def test_inline_is_not_for_async(self):
        async def later(prediction): ...

        with pytest.raises(ConfigError, match="async already"):
            reward(inline=True)(later)


class TestArguments:
    def test_from_the_trajectory(self, make_group):
        group = make_group("four", env_reward=0.5)
        trajectory = group.trajectories[0]

        def ask(final_response, prediction, trajectory, problem, context, messages, env_reward): ...

        given = reward(ask).bind(trajectory, group.problem)
        assert given["final_response"] == given["prediction"] == "four"
        assert given["trajectory"] is trajectory
        assert given["problem"] is group.problem
        assert given["env_reward"] == given["context"].env_reward == 0.5
        assert [m["role"] for m in given["messages"]] == ["user", "assistant"]

    def test_from_the_columns(self, make_group):
        assert bound(lambda answer, level: 1, make_group, level=3) == {"answer": "4", "level": 3}

    def test_defaults_are_left_to_the_function(self, make_group):
        assert bound(lambda answer, level=5: 1, make_group) == {"answer": "4"}

    def test_keyword_functions_get_every_column(self, make_group):
        assert bound(lambda prediction, **rest: 1, make_group, level=3) == {
            "prediction": "four", "answer": "4", "level": 3,
        }  # fmt: skip

    def test_a_chain_that_never_acted_has_no_environment_reward(self, make_group):
        group = make_group("four")
        given = reward(lambda env_reward: 1).bind(group.trajectories[0], group.problem)
        assert given == {"env_reward": None}

    def test_a_problem_without_the_column(self, make_group):
        with pytest.raises(RewardError, match=r"reward '<lambda>': problem p has no column 'gold'"):
            bound(lambda gold: 1, make_group)


class TestCheckColumns:
    def test_what_is_there_passes(self):
        agentfly_style.check_columns(["answer"])
        reward(lambda gold=None, **rest: 1).check_columns([])

    def test_a_missing_column_names_reward_column_and_columns(self):
        with pytest.raises(ConfigError) as caught:
            agentfly_style.check_columns(["anwser", "level"])
        text = str(caught.value)
        assert "reward 'x' asks for the column 'answer' (did you mean 'anwser'?)" in text
        assert "Its columns: anwser, level" in text

    def test_the_name_reward_is_nobodys(self):
        with pytest.raises(ConfigError, match="asks for the column 'reward'"):
            reward(lambda reward: 1).check_columns(["reward"])


class TestResults:
    made = reward(name="r")(lambda: None)

    @pytest.mark.parametrize(
        ("value", "number"),
        [
            (0.5, 0.5),
            (1, 1.0),
            (True, 1.0),
            (False, 0.0),
            (-2, -2.0),
            (np.float32(0.5), 0.5),
            (np.int64(3), 3.0),
            (np.array(0.25), 0.25),
            (Fraction(1, 4), 0.25),
        ],
    )
    def test_numbers(self, value, number):
        assert self.made.read(value) == Verdict(reward=number)

    def test_none_is_not_zero(self):
        assert self.made.read(None) is None
        assert self.made.read({"reward": None, "a": 1}) is None

    def test_named_parts(self):
        value = {"reward": 0.5, "format": True, "length": 3, "note": "text", "list": [1]}
        assert self.made.read(value) == Verdict(reward=0.5, parts={"format": 1.0, "length": 3.0})

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
    def test_non_finite_numbers_are_refused_by_name(self, value):
        with pytest.raises(RewardError, match=r"reward 'r': its result is -?(nan|inf)"):
            self.made.read(value)

    @pytest.mark.parametrize("value", [{"reward": math.nan}, {"reward": 1, "part": math.inf}])
    def test_also_inside_a_dict(self, value):
        with pytest.raises(RewardError, match="reward 'r'"):
            self.made.read(value)

    @pytest.mark.parametrize("value", [10**400, {"reward": 1, "part": 10**400}, np.datetime64("2026-01-01")])
    def test_what_is_no_float_is_refused_by_name(self, value):
        with pytest.raises(RewardError, match=r"reward 'r': its .* cannot be made a float"):
            self.made.read(value)

    @pytest.mark.parametrize("value", ["1.0", [1], (1, 2), {"score": 1}, {"reward": "1"}, 1j, object(), np.ones(2)])
    def test_anything_else_is_refused_by_name(self, value):
        with pytest.raises(RewardError, match="reward 'r'"):
            self.made.read(value)


class TestRegistry:
    def test_shipped(self):
        assert get_reward("math_equal") is math_equal

    def test_by_path(self, odd_rewards):
        assert get_reward("odd_rewards:right") is odd_rewards.right

    def test_unknown_names_the_nearest(self):
        with pytest.raises(ConfigError, match=r"unknown reward 'math_equals': did you mean 'math_equal'\?"):
            get_reward("math_equals")
