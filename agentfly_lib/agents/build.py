"""From a recipe's `[agent]` table to an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.kinds import agent_class
from agentfly_lib.configs.agent import AgentConfig

__all__ = ["build_agent"]


def build_agent(config: AgentConfig, model_path: str | Path, **options: Any) -> Agent:
    """The agent of a config, in the format of the model in `model_path`; `options` are more arguments of its class.

    Raises `ConfigError` for an unknown class, tool or reward (with the nearest name), `ModelError` for a model without
    a tokenizer or a chat template. Names are looked at before the model.
    """
    return agent_class(config).from_config(config, model_path, **options)
