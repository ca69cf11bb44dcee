"""What agents share that act in words of their own instead of the model's tool-call format.

Their system message teaches the format and describes the tools, so the chat template is given no tool schemas. Results
come back in the user's turn, which every chat template has, wrapped the way the format wants it. Nothing else differs:
what was sampled is kept as sampled, and the wrapped results are part of the bridge.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from agentfly_lib.agents.agent import Agent
from agentfly_lib.chat import MalformedCall, ToolCall
from agentfly_lib.rollout.agent import content_of, text_without_images
from agentfly_lib.tools import ToolResult
from agentfly_lib.types import Message, Problem

__all__ = ["TextAgent"]


class TextAgent(Agent):
    """An agent with a text format: subclasses say how to instruct and how to parse, and may wrap results."""

    observation_role: ClassVar[str] = "user"
    """Role of the message that carries results; `tool` if the model's template should wrap them too."""

    @abstractmethod
    def instructions(self) -> str:
        """The format and the tools, as the system message tells them."""

    def wrap(self, observation: str) -> str:
        """One result as the policy reads it; as it is, unless a subclass has its own way."""
        return observation

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """None for the template: `instructions` describes the tools."""
        return []

    def build_messages(self, problem: Problem) -> list[Message]:
        """The instructions, then the system prompt (the problem's own if it has one), then the problem."""
        messages = list(problem.messages)
        system: Any = self.system_prompt
        if messages and messages[0].get("role") == "system":
            system = messages.pop(0)["content"]
        if isinstance(system, list):
            system = "\n\n".join(str(part.get("text", "")) for part in system)
        text = "\n\n".join(filter(None, (self.instructions(), system)))
        return [{"role": "system", "content": text}, *messages]

    def observe(self, calls: Sequence[ToolCall | MalformedCall], results: Sequence[ToolResult]) -> list[Message]:
        """All results of the turn in one message, the images of all of them before the text."""
        if not self.sees:
            text = "\n".join(self.wrap(text_without_images(result)) for result in results)
            return [{"role": self.observation_role, "content": text}]
        whole = ToolResult(
            observation="\n".join(self.wrap(result.observation) for result in results),
            images=tuple(image for result in results for image in result.images),
        )
        return [{"role": self.observation_role, "content": content_of(whole, sees=True)}]

    def describe_tools(self) -> str:
        """One line per tool: name, description, arguments as JSON Schema."""
        return "\n".join(
            f"- {tool.name}: {tool.description} Arguments: {json.dumps(tool.parameters, ensure_ascii=False)}"
            for tool in self.tools.values()
        )
