"""Which tool-call parser an agent reads replies with."""

from __future__ import annotations

import pytest

from agentfly_lib.agents import build_agent
from agentfly_lib.agents.hf import HFAgent
from agentfly_lib.chat import HermesParser, ParsedReply
from agentfly_lib.chat.glm import GlmParser
from agentfly_lib.configs.agent import HFAgentConfig
from agentfly_lib.errors import ConfigError


class Own:
    def parse(self, text: str) -> ParsedReply:
        return ParsedReply(content=text.upper())


def test_unset_is_what_the_template_teaches(model_path):
    assert HFAgent(model_path).parser == HermesParser()


def test_by_name_with_the_types_of_the_tools(model_path):
    agent = build_agent(HFAgentConfig(parser="glm"), model_path)
    assert isinstance(agent, HFAgent)
    assert isinstance(agent.parser, GlmParser)
    text = "<tool_call>calculator<arg_key>expression</arg_key><arg_value>12</arg_value></tool_call>"
    (call,) = agent.parse(text).calls
    assert call.arguments == {"expression": "12"}  # its schema says that it is a string


def test_one_of_ones_own(model_path):
    assert HFAgent(model_path, parser=Own()).parse("abc").content == "ABC"


def test_unknown(model_path):
    with pytest.raises(ConfigError, match="did you mean 'mistral'"):
        build_agent(HFAgentConfig(parser="mistrall"), model_path)
