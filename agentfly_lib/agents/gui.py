"""`GUIAgent`: works on a screen, one action a turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentfly_lib.agents.gui_tools import finished
from agentfly_lib.agents.problem_images import with_images_of
from agentfly_lib.agents.text import TextAgent
from agentfly_lib.chat.calls import ParsedReply
from agentfly_lib.chat.gui_action import GuiActionParser, Screen
from agentfly_lib.configs.agent import AgentSettings, GUIAgentConfig
from agentfly_lib.tools import Tool
from agentfly_lib.types import Message, Problem

__all__ = ["GUIAgent"]

_INSTRUCTIONS = """\
You work on a screen of {width} x {height} pixels; (0, 0) is its top left corner. In every turn, write:
Thought: what you see and what you want to do
Action: one of the actions below, with its arguments by name, for example click(x=100, y=200)

{actions}"""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class GUIAgent(TextAgent):
    """Its tools are its actions (`gui_tools`); `finished` is always among them.

    The first screen is in the problem's column `images`, the next ones in the results of actions.
    """

    sees = True

    screen: Screen

    def __init__(
        self,
        model_name_or_path: str | Path,
        tools: Iterable[Tool | str] | None = None,
        *,
        screen: Screen | None = None,
        **options: Any,
    ) -> None:
        """`screen` is 1280 x 720 if unset; everything else as for any agent."""
        actions = list(self.default_tools if tools is None else tools)
        if not any(getattr(action, "name", None) == finished.name for action in actions):
            actions.append(finished)
        super().__init__(model_name_or_path, actions, **options)
        self._freeze(screen=screen or Screen())

    @classmethod
    def from_config(cls, config: AgentSettings, model_name_or_path: str | Path, **options: Any) -> Self:
        """As for any agent, with the config's screen."""
        if isinstance(config, GUIAgentConfig):
            options = {"screen": Screen(width=config.screen_width, height=config.screen_height)} | options
        return super().from_config(config, model_name_or_path, **options)

    def instructions(self) -> str:
        """The format, the screen and the actions."""
        actions = "\n".join(_action_line(tool) for tool in self.tools.values())
        return _INSTRUCTIONS.format(width=self.screen.width, height=self.screen.height, actions=actions)

    def build_messages(self, problem: Problem) -> list[Message]:
        """As for any agent of text, with the first screen as a content part."""
        return with_images_of(problem, super().build_messages(problem))

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart."""
        return GuiActionParser(self.screen).parse(text)


def _action_line(tool: Tool) -> str:
    required = tool.parameters.get("required", ())
    arguments = ", ".join(
        f"{name}: {_kind(schema)}{'' if name in required else ' = ' + repr(schema.get('default'))}"
        for name, schema in tool.parameters.get("properties", {}).items()
    )
    return f"{tool.name}({arguments})  {tool.description.splitlines()[0] if tool.description else ''}".rstrip()


def _kind(schema: dict[str, Any]) -> str:
    if values := schema.get("enum"):
        return " | ".join(repr(value) for value in values)
    return str(schema.get("type", "value"))
