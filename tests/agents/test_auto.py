"""`AutoAgent`: the same agent from a config, a dict, and a file; what is wrong is named."""

from __future__ import annotations

import pytest

from agentfly_lib.agents import AutoAgent, CodeAgent, GUIAgent, HFAgent, ImageAgent, ReActAgent, SearchAgent
from agentfly_lib.chat.gui_action import Screen
from agentfly_lib.configs import (
    CodeAgentConfig,
    CustomAgentConfig,
    GUIAgentConfig,
    HFAgentConfig,
    ImageAgentConfig,
    ReActAgentConfig,
    RewardConfig,
    SearchAgentConfig,
    SlidingWindowConfig,
)
from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards import math_equal, reward
from agentfly_lib.tools import calculator, tool

CUSTOM = """
from agentfly_lib.agents import Agent, HFAgent
class Mine(HFAgent):
    pass
class HalfDone(Agent):
    pass
other = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch) -> str:
    (tmp_path / "mine_for_auto.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(tmp_path)
    return "mine_for_auto"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (HFAgentConfig(), HFAgent),
        (ReActAgentConfig(), ReActAgent),
        (CodeAgentConfig(tools=("calculator",)), CodeAgent),
        (SearchAgentConfig(tools=("calculator",)), SearchAgent),
        (ImageAgentConfig(), ImageAgent),
        (GUIAgentConfig(), GUIAgent),
    ],
)
def test_every_kind_has_its_class(model_path, config, kind):
    agent = AutoAgent.from_config(config, model_path)
    assert type(agent) is kind


def test_everything_of_a_config_arrives(model_path):
    window = SlidingWindowConfig(start_at=0.8, keep=0.3)
    config = ReActAgentConfig(
        system_prompt="Hi.", max_turns=5, tool_timeout_seconds=2.0, max_tool_chars=100, compaction=window,
        reward=RewardConfig(name="math_equal", timeout_seconds=7.0),
    )  # fmt: skip
    agent = AutoAgent.from_config(config, model_path)
    assert (agent.system_prompt, agent.max_turns, agent.tool_timeout_seconds, agent.max_tool_chars) == (
        "Hi.", 5, 2.0, 100,
    )  # fmt: skip
    assert (agent.compaction, agent.reward, agent.reward_timeout_seconds) == (window, math_equal, 7.0)
    assert agent.tools == {"calculator": calculator}


def test_a_dict_may_hold_objects_and_what_the_class_takes_besides(model_path):
    look = tool(name="look")(lambda where: "")
    mine = reward(inline=True)(lambda prediction: 1)
    agent = AutoAgent.from_config(
        {
            "agent_type": "react",
            "model_name_or_path": model_path,
            "tools": [look],
            "reward_fn": mine,
            "max_turns": 2,
            "backend_config": {"backend": "scripted", "script": ["Final Answer: x"]},
        }
    )
    assert isinstance(agent, ReActAgent)
    assert (agent.tools, agent.reward, agent.max_turns) == ({"look": look}, mine, 2)
    assert agent.run_sync("?").rewards == [1.0]


def test_what_is_given_as_an_object_is_not_looked_for_by_name(model_path):
    look = tool(name="look")(lambda where: "")
    agent = AutoAgent.from_config({"type": "search", "tools": [look]}, model_path)
    assert agent.tools == {"look": look}


def test_a_dict_with_names(model_path):
    agent = AutoAgent.from_config({"tools": ["calculator"], "reward_name": "math_equal"}, model_path)
    assert isinstance(agent, HFAgent)
    assert (agent.tools, agent.reward) == ({"calculator": calculator}, math_equal)


def test_a_file(model_path, tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text(
        f'[model]\nname_or_path = "{model_path}"\n'
        '[agent]\ntype = "gui"\nscreen_width = 640\nscreen_height = 480\ncompaction.type = "summary"\n'
    )
    agent = AutoAgent.from_config(path)
    assert isinstance(agent, GUIAgent)
    assert (agent.screen, agent.compaction.type) == (Screen(width=640, height=480), "summary")


def test_a_recipe_is_such_a_file(model_path):
    agent = AutoAgent.from_config("recipes/ci.toml", model_path)
    assert agent.tools == {"calculator": calculator}


def test_a_class_of_ones_own(model_path, mine):
    agent = AutoAgent.from_config(CustomAgentConfig(name=f"{mine}:Mine"), model_path)
    assert (type(agent).__module__, type(agent).__name__) == (mine, "Mine")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "raect"}, "agent.type = 'raect'.* did you mean `agent.type = \"react\"`"),
        ({"max_turn": 3}, r"unknown key agent.max_turn \(value 3\): did you mean agent.max_turns"),
        ({"max_turns": 0}, "agent.max_turns = 0"),
        ({"screen_width": 3}, "belongs to another variant"),
        ({"compaction": {"type": "sliding_window", "keep": 0.95}}, "keep=0.95 must be less than start_at=0.9"),
        ({"tools": ["calcu"]}, "unknown tool 'calcu'"),
        ({"reward_name": "math_eq"}, "did you mean 'math_equal'"),
        ({"type": "custom", "name": "nowhere_at_all:Agent"}, "cannot import nowhere_at_all"),
        (
            {"type": "custom", "name": "mine_for_auto:Mien"},
            "agent 'mine_for_auto:Mien': .* has no Mien; did you mean Mine",
        ),
        ({"type": "custom", "name": "mine_for_auto:other"}, "mine_for_auto:other' is a .*; name a class derived from"),
        ({"type": "custom", "name": "mine_for_auto:HalfDone"}, "does not define parse"),
    ],
)
def test_what_cannot_be_is_named(model_path, mine, config, message):
    with pytest.raises(ConfigError, match=message):
        AutoAgent.from_config(config, model_path)


def test_files_that_hold_no_agent(tmp_path):
    with pytest.raises(ConfigError, match="cannot read an agent from"):
        AutoAgent.from_config(tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ConfigError, match="no table"):
        AutoAgent.from_config(tmp_path / "empty.toml")


def test_without_a_model():
    with pytest.raises(ConfigError, match="no model"):
        AutoAgent.from_config({})


def test_it_is_not_made_itself():
    with pytest.raises(TypeError, match="from_config"):
        AutoAgent()
