"""Rewards of agents that see: text read in pictures, people's answers, steps on a screen, a judge that sees."""

from __future__ import annotations

import base64
import json

import pytest

from agentfly_lib.configs import RewardConfig
from agentfly_lib.rewards import build_reward, llm_judge, score_groups
from agentfly_lib.rewards.anls import anls, similarity
from agentfly_lib.rewards.judge import PICTURES
from agentfly_lib.rewards.registry import get_reward
from agentfly_lib.rewards.vqa_accuracy import vqa_accuracy
from tests.chat.vision_models import png


async def rewards(made, *groups):
    scores = await score_groups(made, groups, timeout=20.0, max_concurrency=4, retries=0)
    return [(score.reward, dict(score.parts)) for score in scores]


class TestAnls:
    @pytest.mark.parametrize(
        ("given", "right", "expected"),
        [
            ("kitten", "sitting", 1 - 3 / 7),  # the textbook's distance of 3
            ("hello", "hello", 1.0),
            ("helo", "hello", 0.8),
            ("ab", "xy", 0.0),
            ("abcd", "abxy", 0.5),
            ("abc", "xyzc", 0.0),  # 1/4, below the threshold
            ("", "", 1.0),
            ("", "a", 0.0),
        ],
    )
    def test_by_hand(self, given, right, expected):
        assert similarity(given, right) == pytest.approx(expected)

    def test_the_best_of_several_answers_without_case(self):
        assert anls("The answer is HELO", answer=["goodbye", "Hello"]) == pytest.approx(0.8)
        assert anls("x", answer=[]) is None


class TestVqa:
    @pytest.mark.parametrize(("agreeing", "expected"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
    def test_ten_people(self, agreeing, expected):
        people = ["red"] * agreeing + [f"other {number}" for number in range(10 - agreeing)]
        assert vqa_accuracy("<answer>Red.</answer>", answer=people) == pytest.approx(expected)

    def test_one_person(self):
        assert vqa_accuracy("red", answer="red") == 1.0
        assert vqa_accuracy("red", answer=["blue", "green"]) == 0.0


class TestGuiAction:
    @pytest.mark.parametrize(
        ("reply", "columns", "reward", "parts"),
        [
            ("Action: click(x=5, y=5)", {"action": "click", "box": [0, 0, 9, 9]}, 1.0, {"kind": 1, "hit": 1}),
            ("Action: click(x=5, y=10)", {"action": "click", "box": [0, 0, 9, 9]}, 0.5, {"kind": 1, "hit": 0}),
            (
                "Action: click(x=9, y=0)",
                {"action": "click", "box": [[50, 50, 60, 60], [0, 0, 9, 9]]},
                1.0,
                {"kind": 1, "hit": 1},
            ),
            (
                'Action: type(text="red apple")',
                {"action": "type", "text": "green apple"},
                0.75,
                {"kind": 1, "text": 0.5},
            ),
            ("Action: key(keys='enter')", {"action": "key", "text": "enter"}, 1.0, {"kind": 1, "text": 1}),
            (
                "Action: scroll(x=5, y=5, direction='up')",
                {"action": "click", "box": [0, 0, 9, 9]},
                0.0,
                {"kind": 0, "hit": 0},
            ),
            ("I click.", {"action": "click", "box": [0, 0, 9, 9], "text": "a"}, 0.0, {"kind": 0, "hit": 0, "text": 0}),
            ("Action: wait(seconds=1)", {"action": "wait"}, 1.0, {"kind": 1}),
        ],
    )
    async def test_by_hand(self, make_group, reply, columns, reward, parts):
        (found,) = await rewards(get_reward("gui_action"), make_group(reply, **columns))
        assert found == (pytest.approx(reward), {name: pytest.approx(value) for name, value in parts.items()})

    async def test_a_point_beyond_the_screen_is_no_action(self, make_group):
        made = build_reward(RewardConfig(name="gui_action", settings={"screen_width": 4, "screen_height": 4}))
        (found,) = await rewards(made, make_group("Action: click(x=5, y=1)", action="click", box=[0, 0, 9, 9]))
        assert found[0] == 0.0

    async def test_without_a_right_action_there_is_nothing_to_judge(self, make_group):
        (found,) = await rewards(get_reward("gui_action"), make_group("Action: click(x=5, y=1)"))
        assert found[0] is None

    async def test_a_box_that_is_none_is_an_error_not_a_zero(self, make_group):
        (found,) = await rewards(
            get_reward("gui_action"), make_group("Action: click(x=5, y=1)", action="click", box=[1])
        )
        assert found[0] is None


class TestJudge:
    @pytest.mark.parametrize(("pictures", "expected"), [("none", 0), ("problem", 1), ("all", 1)])
    async def test_one_that_sees_is_shown_the_pictures(self, fake_server, make_group, tmp_path, pictures, expected):
        answer = {
            "choices": [{"message": {"content": json.dumps({"reason": "so", "score": 7})}, "finish_reason": "stop"}]
        }
        server = await fake_server(lambda path, body: answer)
        url = f"data:image/png;base64,{base64.b64encode(png(8, 8)).decode()}"
        made = llm_judge(base_url=server.url, model="j", cache="none", pictures=pictures)
        (found,) = await rewards(made, make_group("red", image=url))
        assert found[0] == pytest.approx(0.7)
        system, user = (message["content"] for message in server.bodies[0]["messages"])
        if not expected:
            assert isinstance(user, str)
            return
        assert user[0]["type"] == "text"
        assert user[1:] == [{"type": "image_url", "image_url": {"url": url}}]
        assert PICTURES in system
