"""Agents: the value that chains run on, and `HFAgent` for use on its own. Loads no engine."""

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.agents.hf import HFAgent
from agentfly_lib.agents.result import RunResult

__all__ = ["Agent", "HFAgent", "RunResult", "build_agent"]
