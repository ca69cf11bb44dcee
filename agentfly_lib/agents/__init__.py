"""Agents: a model with its prompt, tools, reward and limits, one kind per file. Loads no engine."""

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.agents.hf import HFAgent
from agentfly_lib.agents.result import RunResult

__all__ = ["Agent", "HFAgent", "RunResult", "build_agent"]
