"""What agents share whose format has one thing to do: run this code, search for this."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

from agentfly_lib.agents.text import TextAgent
from agentfly_lib.chat import CallParser, ParsedReply
from agentfly_lib.errors import ConfigError
from agentfly_lib.tools import Tool

__all__ = ["OneToolAgent"]


class OneToolAgent(TextAgent):
    """Has one tool, which takes what the policy writes: the one of its usual name, or the one that it was given."""

    tool_name: ClassVar[str]
    """Its usual name."""

    @abstractmethod
    def make_parser(self, tool: str, argument: str) -> CallParser:
        """What takes replies apart, for a tool of this name whose argument is called so."""

    @cached_property
    def _parser(self) -> CallParser:
        tool = self._only_tool()
        return self.make_parser(tool.name, _text_argument(tool, type(self).__name__))

    def check(self) -> None:
        """Raises `ConfigError` if it is not clear which tool to call, or what to give it."""
        _ = self._parser

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart."""
        return self._parser.parse(text)

    def _only_tool(self) -> Tool:
        kind, name = type(self).__name__, self.tool_name
        if not self.tools or (len(self.tools) > 1 and name not in self.tools):
            have = ", ".join(self.tools) or "none"
            raise ConfigError(f"{kind} needs exactly one tool, or one named {name!r}; it was given: {have}")
        if len(self.tools) > 1:
            others = ", ".join(other for other in self.tools if other != name)
            raise ConfigError(f"{kind} can call {name!r} only; it was given {others} too, which it could never reach")
        return next(iter(self.tools.values()))


def _text_argument(tool: Tool, kind: str) -> str:
    """The required parameter, or else the only one; it must take text."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    names = list(tool.parameters.get("required", ())) or list(properties)
    if len(names) != 1:
        raise ConfigError(
            f"{kind} gives its tool one text, but {tool.name!r} has the parameters {', '.join(properties) or 'none'}; "
            "give the others defaults"
        )
    return names[0]
