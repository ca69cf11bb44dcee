"""From a recipe's `[agent]` to an agent, or to an error that names what is wrong."""

from __future__ import annotations

import sys
import textwrap

import pytest

from agentfly_lib.agents import build_agent
from agentfly_lib.chat import get_parser
from agentfly_lib.configs import CustomAgentConfig, HFAgentConfig, RewardConfig
from agentfly_lib.errors import ConfigError, ModelError
from agentfly_lib.rewards import math_equal
from agentfly_lib.tools import calculator
from agentfly_lib.types import Problem


def test_everything_of_the_config_arrives(model_path):
    config = HFAgentConfig(system_prompt="Hi.", max_turns=5, tool_timeout_seconds=2.0, max_tool_chars=100)
    agent = build_agent(config, model_path)
    assert agent.tools == {"calculator": calculator}
    assert agent.reward is math_equal
    assert (agent.system_prompt, agent.max_turns, agent.tool_timeout_seconds, agent.max_tool_chars) == (
        "Hi.", 5, 2.0, 100,
    )  # fmt: skip
    assert agent.schemas == [calculator.schema]


def test_names_of_ones_own(model_path, tmp_path, monkeypatch):
    (tmp_path / "mine_for_build.py").write_text(
        "from agentfly_lib.tools import tool\nfrom agentfly_lib.rewards import reward\n"
        "@tool\ndef look(): return 1\n@reward\ndef good(prediction): return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = HFAgentConfig(tools=("mine_for_build:look",), reward=RewardConfig(name="mine_for_build:good"))
    agent = build_agent(config, model_path)
    assert list(agent.tools) == ["look"]
    assert agent.reward.name == "good"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (HFAgentConfig(tools=("calcu",)), "unknown tool 'calcu'"),
        (HFAgentConfig(reward=RewardConfig(name="math_eq")), "unknown reward 'math_eq': did you mean 'math_equal'"),
        (HFAgentConfig(tools=("calculator", "calculator")), "two tools are called"),
    ],
)
def test_unknown_names_are_found_before_the_model_is_looked_at(config, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        build_agent(config, tmp_path / "nowhere")


def test_a_model_that_cannot_be_used(tmp_path):
    with pytest.raises(ModelError, match="no model directory"):
        build_agent(HFAgentConfig(), tmp_path / "nowhere")


def test_the_fingerprint_follows_the_prompt(model_path):
    same = [build_agent(HFAgentConfig(), model_path).fingerprint for _ in range(2)]
    others = {
        build_agent(HFAgentConfig(tools=()), model_path).fingerprint,
        build_agent(HFAgentConfig(system_prompt="Hi."), model_path).fingerprint,
    }
    assert same[0] == same[1]
    assert len(others | set(same)) == 3


def test_parse_finds_calls(model_path):
    agent = build_agent(HFAgentConfig(), model_path)
    text = '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>'
    assert [call.id for call in agent.parse(text).calls] == ["call-0"]


def test_prompts_show_the_tools(model_path):
    agent = build_agent(HFAgentConfig(), model_path)
    problem = Problem(id="p", messages=({"role": "user", "content": "?"},))
    text = agent.chat.decode(agent.chat.prompt_ids(agent.build_messages(problem), agent.schemas))
    assert '"name": "calculator"' in text


class TestToolSettings:
    """`[agent.tool_settings.<tool>]`, checked before the model is looked at."""

    def corpus(self, tmp_path, **more):
        path = tmp_path / "pages.jsonl"
        path.write_text('{"title": "Cat", "text": "purrs"}')
        return {"web_search": {"provider": {"type": "corpus", "path": str(path)}, **more}}

    def test_they_reach_the_tool(self, model_path, tmp_path):
        config = HFAgentConfig(tools=("web_search",), tool_settings=self.corpus(tmp_path, results=2))
        agent = build_agent(config, model_path)
        settings = agent.tools["web_search"].settings
        assert (settings.results, settings.provider.path) == (2, tmp_path / "pages.jsonl")

    def test_faults_are_named(self, tmp_path):
        nowhere = tmp_path / "nowhere"
        for config, message in (
            (HFAgentConfig(tools=("web_search",)), r"set agent\.tool_settings\.web_search\.provider"),
            (
                HFAgentConfig(tools=("web_search",), tool_settings=self.corpus(tmp_path, result=2)),
                r"unknown key tool_settings\.web_search\.result: did you mean results",
            ),
            (
                HFAgentConfig(tool_settings={"calculater": {}}),
                r"agent\.tool_settings\.calculater: the agent has no tool of that name; did you mean 'calculator'",
            ),
            (HFAgentConfig(tool_settings={"calculator": {}}), "tool 'calculator' has no settings"),
        ):
            with pytest.raises(ConfigError, match=message):
                build_agent(config, nowhere)


class TestOptionsOfACustomAgent:
    """`[agent.options]`, checked against the signature of the class before the model is looked at."""

    @pytest.fixture(autouse=True)
    def arrow(self, tmp_path, monkeypatch):
        (tmp_path / "arrows.py").write_text(
            textwrap.dedent(
                """
                from typing import Any, Literal
                from agentfly_lib.agents import Agent, HFAgent
                from agentfly_lib.chat import ParsedReply

                class Arrow(Agent):
                    def __init__(
                        self, model, tools=None, *, arrow: Literal["->", "=>"] = "->", depth: int = 1, **options: Any
                    ):
                        super().__init__(model, tools, **options)
                        self._freeze(arrow=arrow, depth=depth)

                    def parse(self, text):
                        return ParsedReply(content=text)

                class Longer(Arrow):
                    def __init__(self, *args: Any, name: str, copy: bool = False, **options: Any):
                        super().__init__(*args, **options)
                        self._freeze(name=name, copy=copy)

                class Closed(HFAgent):
                    pass
                """
            )
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "arrows", raising=False)
        yield
        sys.modules.pop("arrows", None)

    def config(self, kind="Arrow", **options):
        return CustomAgentConfig(name=f"arrows:{kind}", tools=(), options=options)

    def test_they_reach_the_class_coerced(self, model_path):
        agent = build_agent(self.config(arrow="=>", depth="3"), model_path)
        assert (agent.arrow, agent.depth) == ("=>", 3)
        assert (build_agent(self.config(), model_path).arrow) == "->"
        longer = build_agent(self.config("Longer", name="x", copy=True, depth=2), model_path)
        assert (longer.name, longer.copy, longer.depth, longer.arrow) == ("x", True, 2, "->")
        assert isinstance(build_agent(self.config("Closed", parser="glm"), model_path).parser, type(get_parser("glm")))

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("Arrow", {"arow": "->"}, r"unknown key agent\.options\.arow: did you mean arrow\?"),
            ("Arrow", {"zzz": 1}, r"unknown key agent\.options\.zzz: valid keys: arrow, depth"),
            ("Arrow", {"arrow": "~>"}, r"agent\.options\.arrow = '~>': Input should be '->' or '=>'"),
            ("Arrow", {"depth": "deep"}, r"agent\.options\.depth = 'deep': Input should be a valid integer"),
            (
                "Arrow",
                {"max_turns": 3},
                r"agent\.options\.max_turns: every agent has this; write it as agent\.max_turns",
            ),
            ("Arrow", {"backend": "x"}, r"unknown key agent\.options\.backend"),
            ("Longer", {}, r"Longer: agent\.options\.name is required and not set"),
        ],
    )
    def test_faults_are_named(self, tmp_path, name, options, message):
        with pytest.raises(ConfigError, match=message):
            build_agent(self.config(name, **options), tmp_path / "nowhere")

    def test_only_agents_of_ones_own_have_them(self):
        with pytest.raises(ValueError, match="options"):
            HFAgentConfig.model_validate({"options": {}})
