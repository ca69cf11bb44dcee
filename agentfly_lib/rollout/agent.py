"""What a rollout needs of an agent: how to speak, which tools there are, how much each may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentfly_lib.chat.calls import ToolCall
from agentfly_lib.configs.agent import NoCompactionConfig, SlidingWindowConfig, SummaryConfig
from agentfly_lib.tools import Tool, ToolResult
from agentfly_lib.types import Message, Problem

if TYPE_CHECKING:
    from agentfly_lib.chat import ChatFormat, MalformedCall, ParsedReply, StreamParser

__all__ = ["ChainAgent", "content_of", "text_without_images", "tool_messages"]


class ChainAgent(Protocol):
    """What a chain needs of an agent. `agentfly_lib.agents.Agent` is one."""

    @property
    def chat(self) -> ChatFormat: ...

    @property
    def tools(self) -> Mapping[str, Tool]: ...

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Tool schemas that the chat template writes; none if the prompt's own words describe the tools."""
        ...

    @property
    def max_turns(self) -> int: ...

    @property
    def tool_timeout_seconds(self) -> float: ...

    @property
    def max_tool_chars(self) -> int: ...

    @property
    def max_calls_per_turn(self) -> int: ...

    @property
    def compaction(self) -> NoCompactionConfig | SlidingWindowConfig | SummaryConfig: ...

    def build_messages(self, problem: Problem) -> list[Message]:
        """The conversation that the first prompt renders, system prompt included."""
        ...

    def parse(self, text: str) -> ParsedReply:
        """Content and tool calls of one reply. Those that the length limit cut are never asked about."""
        ...

    def stream_parser(self) -> StreamParser | None:
        """Keeps the markup of one reply's calls from whoever listens; None where calls are words like any others."""
        ...

    def observe(self, calls: Sequence[ToolCall | MalformedCall], results: Sequence[ToolResult]) -> list[Message]:
        """What comes back to the policy after a turn: its calls and their results, in order."""
        ...


def tool_messages(
    calls: Sequence[ToolCall | MalformedCall], results: Sequence[ToolResult], *, sees: bool = False
) -> list[Message]:
    """One message of the role `tool` per call: how most models are told of results; `sees` as in `content_of`."""
    messages: list[Message] = []
    for call, result in zip(calls, results, strict=True):
        message: Message = {"role": "tool", "tool_call_id": call.id, "content": content_of(result, sees=sees)}
        if isinstance(call, ToolCall):
            message["name"] = call.name
        messages.append(message)
    return messages


def content_of(result: ToolResult, *, sees: bool) -> str | list[dict[str, Any]]:
    """A result as the content of a message: a text, or, for an agent that sees, its images as parts before the text."""
    if not result.images:
        return result.observation
    if not sees:
        return text_without_images(result)
    images = [{"type": "image", "image": image} for image in result.images]
    return [*images, {"type": "text", "text": result.observation}]


def text_without_images(result: ToolResult) -> str:
    """The observation for an agent that does not see, with a mark that says what it is not shown."""
    count = len(result.images)
    if not count:
        return result.observation
    return f"{result.observation}\n[{count} {'image was' if count == 1 else 'images were'} left out]"
