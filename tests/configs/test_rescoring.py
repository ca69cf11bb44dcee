"""The reward of a rescoring: by name, from a file, by single keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.configs import RewardConfig
from agentfly_lib.configs.rescoring import rescoring_reward
from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards.registry import build_reward

BASE = RewardConfig(name="math_equal", timeout_seconds=7, max_concurrency=3, retries=0)
REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_name_alone_keeps_the_limits_of_the_run():
    assert rescoring_reward(BASE, name="exact_match") == BASE.model_copy(update={"name": "exact_match"})


def test_settings_come_from_a_file_and_from_keys(tmp_path):
    file = tmp_path / "reward.toml"
    file.write_text('name = "format"\ntimeout_seconds = 9\n[settings]\ntags = ["think", "answer"]\n')
    found = rescoring_reward(BASE, file=file, overrides=['agent.reward.settings.turns="all"'])
    assert found.settings == {"tags": ["think", "answer"], "turns": "all"}
    assert (found.name, found.timeout_seconds, found.max_concurrency) == ("format", 9, 3)
    assert found.identity.startswith("format-")  # other settings are other scores
    assert build_reward(found).name == "format"


def test_parts(tmp_path):
    file = tmp_path / "reward.toml"
    file.write_text('[[parts]]\nname = "math_equal"\n[[parts]]\nname = "tool_use"\nweight = 0.1\n')
    found = rescoring_reward(BASE, file=file)
    assert (found.name, [part.weight for part in found.parts]) == ("composite", [1.0, 0.1])


def test_the_reward_of_a_recipe():
    assert rescoring_reward(BASE, file=REPOSITORY / "recipes" / "ci.toml").name == "math_equal"


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("", [], "no reward: give --reward NAME"),
        ("name =", [], "cannot read a reward from .*reward.toml"),
        ("[agent]\nmax_turns = 3", [], r"has no table \[agent.reward\]"),
        (
            'name = "format"\nsetings = 1',
            [],
            r"unknown key agent\.reward\.setings .*did you mean agent\.reward\.settings",
        ),
        ('name = "format"', ["settings.x=1"], r"--set settings\.x: only keys of the reward"),
        ('name = "format"\nretries = -1', [], r"agent\.reward\.retries = -1"),
    ],
)
def test_faults_are_named(tmp_path, text, overrides, message):
    file = tmp_path / "reward.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        rescoring_reward(BASE, file=file, overrides=overrides)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read a reward"):
        rescoring_reward(BASE, file=tmp_path / "nowhere.toml")
