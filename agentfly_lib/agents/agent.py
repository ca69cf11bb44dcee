"""An agent as a value: its format, prompt, tools, reward and limits. What runs it lives in `rollout`.

Nothing in it changes; any number of chains share one agent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentfly_lib.chat import ChatFormat, HermesParser, MalformedCall, ParsedReply, ToolCall
from agentfly_lib.configs.agent import CompactionConfig, NoCompactionConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards.registry import get_reward
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.rollout.agent import tool_messages
from agentfly_lib.tools import Tool, ToolResult, get_tool
from agentfly_lib.types import Message, Problem

__all__ = ["Agent", "as_reward", "as_tools"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """What a chain needs of an agent (`rollout.ChainAgent`), and the reward that scores it."""

    chat: ChatFormat
    tools: Mapping[str, Tool]
    """By name, in the order in which the prompt lists them."""
    reward: Reward
    parser: HermesParser = field(default_factory=HermesParser)
    system_prompt: str | None = None
    max_turns: int = 3
    """Turns that the policy may take."""
    tool_timeout_seconds: float = 30.0
    """Limit of a call whose tool sets none of its own."""
    max_tool_chars: int = 4096
    """Longest observation of a tool that sets no limit of its own."""
    compaction: CompactionConfig = field(default_factory=NoCompactionConfig)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Tool schemas as the chat template takes them."""
        return [tool.schema for tool in self.tools.values()]

    @cached_property
    def fingerprint(self) -> str:
        """Hash over all that decides what a problem's prompt is: format, system prompt, tool schemas."""
        text = json.dumps([self.chat.fingerprint, self.system_prompt, self.schemas], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def build_messages(self, problem: Problem) -> list[Message]:
        """The first prompt's conversation. A problem that begins with a system message keeps its own."""
        messages = list(problem.messages)
        if self.system_prompt is None or (messages and messages[0].get("role") == "system"):
            return messages
        return [{"role": "system", "content": self.system_prompt}, *messages]

    def parse(self, text: str, truncated: bool) -> ParsedReply:
        """Takes a reply apart; `truncated` if a limit cut it."""
        return self.parser.parse(text, truncated=truncated)

    def observe(self, calls: Sequence[ToolCall | MalformedCall], results: Sequence[ToolResult]) -> list[Message]:
        """What comes back to the policy."""
        return tool_messages(calls, results)


def as_tools(tools: Iterable[Tool | str]) -> dict[str, Tool]:
    """Tools by name, names resolved. Raises `ConfigError` for anything that cannot be called, or a name used twice."""
    found: dict[str, Tool] = {}
    for item in tools:
        tool = get_tool(item) if isinstance(item, str) else item
        if not isinstance(tool, Tool):
            label = getattr(item, "__name__", repr(item))
            raise ConfigError(f"{label} is a {type(item).__name__}, not a tool; put @tool on it, or give a tool's name")
        if tool.needs_instance:
            raise ConfigError(f"tool {tool.name!r} is a method; take it from an instance")
        if tool.name in found:
            raise ConfigError(f"two tools are called {tool.name!r}; give one of them another name")
        _ = tool.schema  # a signature that cannot be described fails here, not in a rollout
        found[tool.name] = tool
    return found


def as_reward(reward: Reward | str) -> Reward:
    """A reward, or the one of that name. Raises `ConfigError`."""
    found = get_reward(reward) if isinstance(reward, str) else reward
    if not isinstance(found, Reward):
        label = getattr(reward, "__name__", repr(reward))
        raise ConfigError(f"{label} is a {type(reward).__name__}, not a reward; put @reward on it, or give a name")
    return found
