"""A weighted sum of rewards: what adds up, what is kept, and what one part that fails does to the whole."""

from __future__ import annotations

import asyncio

import pytest

from agentfly_lib.configs import RewardConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards import (
    CompositeReward,
    Part,
    Reward,
    build_reward,
    group_reward,
    math_equal,
    reward,
    score_groups,
)
from agentfly_lib.rewards.registry import reward_identity
from agentfly_lib.types import Outcome, StopReason


def constant(value, name="c", **settings) -> Reward:
    return reward(name=name, inline=True, **settings)(lambda: value)


@reward(inline=True)
def as_number(prediction):
    return float(prediction)


def composite(*parts: Part) -> CompositeReward:
    return CompositeReward(name="sum", parts=parts)


async def score(made, *groups, timeout=20.0, retries=0, max_concurrency=8):
    return await score_groups(made, groups, timeout=timeout, max_concurrency=max_concurrency, retries=retries)


class TestSum:
    async def test_parts_are_weighted_in_the_sum_and_kept_as_they_are(self, make_group):
        made = composite(
            Part(reward=reward(name="right", inline=True)(lambda prediction, answer: prediction == answer)),
            Part(reward=constant({"reward": 0.5, "depth": 3}, "style"), weight=0.2),
            Part(reward=constant(1), weight=-0.3, name="cost"),
        )
        first, second = await score(made, make_group("4", "5"))
        assert first.reward == pytest.approx(1 + 0.1 - 0.3)
        assert second.reward == pytest.approx(-0.2)
        assert first.parts == {"right": 1.0, "style": 0.5, "style.depth": 3.0, "cost": 1.0}
        assert (first.outcome, first.error) == (Outcome.SCORED, None)

    async def test_composites_nest(self, make_group):
        inner = CompositeReward(name="inner", parts=(Part(reward=constant(1), weight=0.5),))
        (scored,) = await score(composite(Part(reward=inner, weight=2)), make_group("4"))
        assert (scored.reward, scored.parts) == (1.0, {"inner": 0.5, "inner.c": 1.0})

    async def test_single_and_group_rewards_mix(self, make_group):
        longest = group_reward(name="longest", inline=True)(
            lambda final_responses: [float(len(text) == max(map(len, final_responses))) for text in final_responses]
        )
        made = composite(Part(reward=longest), Part(reward=math_equal, weight=10))
        scores = await score(made, make_group("4", "44", "4.0"))
        assert [s.reward for s in scores] == [10.0, 0.0, 11.0]

    async def test_groups_are_scored_in_order(self, make_group):
        made = composite(Part(reward=as_number))
        groups = [make_group("1", "2"), make_group("3"), make_group("4", "5")]
        assert [s.reward for s in await score(made, *groups)] == [1, 2, 3, 4, 5]

    async def test_a_failed_chain_is_not_asked_and_stands_in_its_place(self, make_group):
        made = composite(Part(reward=as_number))
        stops = (StopReason.FINISHED, StopReason.FAILED, StopReason.MAX_TURNS)
        scores = await score(made, make_group("1", "2", "3", stops=stops))
        assert [(s.outcome, s.reward) for s in scores] == [
            (Outcome.SCORED, 1.0),
            (Outcome.FAILED, None),
            (Outcome.TRUNCATED, 3.0),
        ]


class TestMissingParts:
    async def test_one_that_cannot_be_scored_drops_the_whole_with_its_reason(self, make_group):
        made = composite(Part(reward=constant(1)), Part(reward=constant(None, "gone")))
        (dropped,) = await score(made, make_group("4"))
        assert (dropped.outcome, dropped.reward, dropped.parts) == (Outcome.DROPPED, None, {})
        assert dropped.error == "reward 'gone' returned None: it cannot be scored"

    async def test_an_optional_one_adds_nothing_and_is_not_recorded(self, make_group):
        made = composite(Part(reward=constant(1)), Part(reward=constant(None, "gone"), weight=9, optional=True))
        (scored,) = await score(made, make_group("4"))
        assert (scored.reward, scored.parts) == (1.0, {"c": 1.0})

    async def test_an_error_a_time_out_and_nan_are_missing_too(self, make_group):
        @reward(name="slow", timeout=0.05)
        async def slow():
            await asyncio.Event().wait()

        broken = reward(name="broken", inline=True)(lambda: 1 / 0)
        for part, reason in ((slow, "within 0.05 s"), (broken, "ZeroDivisionError"), (constant(float("nan")), "nan")):
            made = composite(Part(reward=constant(1, "base")), Part(reward=part))
            (dropped,) = await score(made, make_group("4"))
            assert dropped.outcome is Outcome.DROPPED
            assert reason in (dropped.error or "")
            lenient = composite(Part(reward=constant(1, "base")), Part(reward=part, optional=True))
            assert [s.reward for s in await score(lenient, make_group("4"))] == [1.0]

    async def test_only_the_chain_that_it_concerns(self, make_group):
        picky = reward(name="picky", inline=True)(lambda prediction: None if prediction == "?" else 1)
        scores = await score(composite(Part(reward=picky)), make_group("4", "?", "5"))
        assert [s.reward for s in scores] == [1.0, None, 1.0]


class TestLimits:
    async def test_each_part_has_its_own_retries_and_places(self, make_group):
        tries: dict[str, int] = {}
        running, most = 0, 0

        async def fail_once(prediction):
            nonlocal running, most
            running += 1
            most = max(most, running)
            tries[prediction] = tries.get(prediction, 0) + 1
            await asyncio.sleep(0)
            running -= 1
            if tries[prediction] == 1:
                raise OSError("busy")
            return 1.0

        part = reward(name="api", retries=1, max_concurrency=2, backoff_seconds=0.001)(fail_once)
        scores = await score(composite(Part(reward=part)), make_group(*"123456"), retries=0)
        assert [s.reward for s in scores] == [1.0] * 6
        assert set(tries.values()) == {2}
        assert most == 2

    async def test_the_recipes_limit_holds_over_all_groups_and_parts(self, make_group):
        running, most = 0, 0

        async def count():
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            running -= 1
            return 1.0

        made = composite(*(Part(reward=reward(count), name=f"part{i}") for i in range(3)))
        await score(made, *[make_group(*"1234")] * 4, max_concurrency=5)
        assert most == 5


class TestRefusals:
    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ((), "at least one part"),
            ((Part(reward=constant(1)), Part(reward=constant(2))), "two parts are called 'c'"),
            ((Part(reward=constant(1), weight=float("nan")),), "weight nan of c is not finite"),
            ((Part(reward=constant(1), optional=True),), "every part is optional"),
            ((Part(reward=len),), "a part is a builtin_function_or_method"),
        ],
    )
    def test_what_cannot_be(self, parts, message):
        with pytest.raises(ConfigError, match=message):
            composite(*parts)

    def test_a_parts_missing_column_is_named(self):
        made = composite(Part(reward=constant(1)), Part(reward=reward(name="x")(lambda gold: 1)))
        with pytest.raises(ConfigError, match="reward 'x' asks for the column 'gold'"):
            made.check_columns(["answer"])
        made.check_columns(["gold"])

    def test_it_cannot_be_called(self):
        with pytest.raises(TypeError, match="part by part"):
            composite(Part(reward=constant(1)))()


class TestRecipe:
    def test_parts(self):
        config = RewardConfig.model_validate(
            {
                "parts": [
                    {"name": "math_equal"},
                    {"name": "tool_use", "weight": 0.1, "optional": True, "label": "acts", "settings": {"wanted": 2}},
                ]
            }
        )
        made = build_reward(config)
        assert isinstance(made, CompositeReward)
        assert [(p.label, p.weight, p.optional) for p in made.parts] == [
            ("math_equal", 1.0, False),
            ("acts", 0.1, True),
        ]
        assert made.name == config.name == "composite"

    def test_one_by_name(self):
        assert build_reward(RewardConfig()) is math_equal
        assert build_reward(RewardConfig(name="overlong", settings={"limit": 9, "buffer": 3})).name == "overlong"

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"name": "math_equal", "settings": {"x": 1}}, "reward 'math_equal' has no settings"),
            ({"name": "overlong"}, "reward 'overlong': settings.limit is required and not set; settings.buffer is"),
            ({"name": "overlong", "settings": {"limits": 1}}, "unknown key settings.limits: did you mean limit?"),
            ({"name": "overlong", "settings": {"limit": "x", "buffer": 1}}, "settings.limit = 'x'"),
            ({"name": "overlong", "settings": {"limit": 5, "buffer": 0}}, "settings.buffer = 0"),
            ({"name": "tool_uses"}, "unknown reward 'tool_uses': did you mean 'tool_use'?"),
            ({"parts": [{"name": "nothing_like_it"}]}, "unknown reward 'nothing_like_it'"),
        ],
    )
    def test_what_is_wrong_is_named(self, config, message):
        with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
            build_reward(RewardConfig.model_validate(config))

    def test_settings_belong_to_parts(self):
        with pytest.raises(ValueError, match="settings belong to the parts"):
            RewardConfig.model_validate({"parts": [{"name": "math_equal"}], "settings": {"a": 1}})

    def test_scores_are_kept_by_all_that_decides_about_them(self):
        def identity(**config) -> str:
            return RewardConfig.model_validate(config).identity

        assert identity(name="math_equal", retries=5) == "math_equal"
        made = [
            identity(parts=[{"name": "math_equal"}]),
            identity(parts=[{"name": "math_equal", "weight": 2}]),
            identity(name="overlong", settings={"limit": 5, "buffer": 1}),
            identity(name="overlong", settings={"limit": 5, "buffer": 2}),
        ]
        assert len(set(made)) == 4
        assert made[0].startswith("composite-")
        assert identity(parts=[{"name": "math_equal"}]) == made[0]

    def test_edited_code_of_the_users_own_makes_other_scores(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        code = "from agentfly_lib.rewards import reward\n@reward\ndef mine(prediction):\n    return len(prediction)\n"
        for name, text in {"first_code": code, "same_code": code, "edited_code": code + "# half\n"}.items():
            (tmp_path / f"{name}.py").write_text(text)

        def mark(*names: str) -> str:
            parts = [{"name": name, "label": str(index)} for index, name in enumerate(names)]
            return reward_identity(RewardConfig.model_validate({"parts": parts})).partition("@")[2]

        assert mark("first_code:mine") == mark("math_equal", "same_code:mine") != mark("edited_code:mine")
        assert mark("math_equal") == ""
