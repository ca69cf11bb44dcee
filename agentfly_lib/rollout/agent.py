"""What a rollout needs of an agent: how to speak, which tools there are, how much each may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agentfly_lib.chat import ChatFormat, ParsedReply
from agentfly_lib.tools import Tool
from agentfly_lib.types import Message, Problem

__all__ = ["ChainAgent"]


class ChainAgent(Protocol):
    """What a chain needs of an agent. `agentfly_lib.agents.Agent` is one."""

    @property
    def chat(self) -> ChatFormat: ...

    @property
    def tools(self) -> Mapping[str, Tool]: ...

    @property
    def max_turns(self) -> int: ...

    @property
    def tool_timeout_seconds(self) -> float: ...

    @property
    def max_tool_chars(self) -> int: ...

    def build_messages(self, problem: Problem) -> list[Message]:
        """The conversation that the first prompt renders, system prompt included."""
        ...

    def parse(self, text: str, truncated: bool) -> ParsedReply:
        """Content and tool calls of one reply; `truncated` if a limit cut it."""
        ...
