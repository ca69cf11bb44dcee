"""From a recipe's `[agent]` table to an agent."""

from __future__ import annotations

from pathlib import Path

from agentfly_lib.agents.agent import Agent, as_reward, as_tools
from agentfly_lib.chat import ChatFormat
from agentfly_lib.configs.agent import AgentConfig

__all__ = ["build_agent"]


def build_agent(config: AgentConfig, model_path: str | Path) -> Agent:
    """The agent of a config, in the format of the model in `model_path`.

    Raises `ConfigError` for an unknown tool or reward (with the nearest name), `ModelError` for a model without a
    tokenizer or a chat template. Names are looked at before the model.
    """
    tools, reward = as_tools(config.tools), as_reward(config.reward.name)
    return Agent(
        chat=ChatFormat.from_pretrained(model_path, template=config.template),
        tools=tools,
        reward=reward,
        system_prompt=config.system_prompt,
        max_turns=config.max_turns,
        tool_timeout_seconds=config.tool_timeout_seconds,
        max_tool_chars=config.max_tool_chars,
    )
