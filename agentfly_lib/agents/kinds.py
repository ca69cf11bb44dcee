"""Kinds of agents by the names that configs give them."""

from __future__ import annotations

from typing import Any, TypeGuard

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.options import read_options
from agentfly_lib.configs.agent import AgentConfig, CustomAgentConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.named import find_named

__all__ = ["SHIPPED_AGENTS", "agent_class"]

SHIPPED_AGENTS = {
    "hf": "agentfly_lib.agents.hf:HFAgent",
    "react": "agentfly_lib.agents.react:ReActAgent",
    "code": "agentfly_lib.agents.code:CodeAgent",
    "search": "agentfly_lib.agents.search:SearchAgent",
    "image": "agentfly_lib.agents.image:ImageAgent",
    "gui": "agentfly_lib.agents.gui:GUIAgent",
}
"""From a config's `type` to where the class is defined; imported when asked for."""


def agent_class(config: AgentConfig) -> type[Agent]:
    """The class of a config's agent.

    Raises `ConfigError` if one of the user's own is not there or is none, or if its options do not fit it.
    """
    name = config.name if isinstance(config, CustomAgentConfig) else config.type
    advice = "name a class derived from agentfly_lib.agents.Agent"
    found = find_named(name, SHIPPED_AGENTS, _is_agent_class, noun="agent", advice=advice)
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise ConfigError(f"agent.name = {name!r}: the class does not define {', '.join(missing)}; add it")
    if isinstance(config, CustomAgentConfig):
        read_options(found, config.options)
    return found


def _is_agent_class(found: Any) -> TypeGuard[type[Agent]]:
    return isinstance(found, type) and issubclass(found, Agent)
