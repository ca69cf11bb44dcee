"""The actions that a GUI agent has, as tools: one per action, all done by one function of whoever owns the screen.

async def perform(action: GuiAction, context: ToolContext) -> ToolResult: ...

GUIAgent(model, tools=gui_tools(perform))
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentfly_lib.bounded import call_in_thread, is_async
from agentfly_lib.tools import Tool, ToolContext, ToolResult, tool

__all__ = ["GuiAction", "Perform", "finished", "gui_tools"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuiAction:
    """What is to be done on the screen."""

    name: Literal["click", "type", "scroll", "drag", "key", "wait"]
    arguments: Mapping[str, Any]
    """As the tool of that name takes them; coordinates in pixels from the top left corner."""


Perform = Callable[[GuiAction, ToolContext], Any]
"""Does an action and returns what a tool may return; asynchronous, or else run in a thread."""


@tool(finishes=True)
def finished(answer: str = "") -> ToolResult:
    """The task is done.

    Args:
        answer: What was asked for, if the task asks for something.
    """
    return ToolResult(observation=answer or "done", answer=answer)


def gui_tools(perform: Perform) -> list[Tool]:
    """Tools click, type, scroll, drag, key, wait (done by `perform`) and finished (which ends the trajectory)."""

    async def do(name: Any, context: ToolContext, **arguments: Any) -> Any:
        action = GuiAction(name=name, arguments=arguments)
        act = functools.partial(perform, action, context)
        value = act() if is_async(perform) else await call_in_thread(act)
        return await value if inspect.isawaitable(value) else value

    @tool
    async def click(
        x: int, y: int, context: ToolContext, button: Literal["left", "right", "middle"] = "left", times: int = 1
    ) -> Any:
        """Click at a point.

        Args:
            x: Pixels from the left.
            y: Pixels from the top.
            times: 2 for a double click.
        """
        return await do("click", context, x=x, y=y, button=button, times=times)

    @tool(name="type")
    async def type_text(text: str, context: ToolContext) -> Any:
        """Type text where the cursor is.

        Args:
            text: What to type; a line break in it presses Enter.
        """
        return await do("type", context, text=text)

    @tool
    async def scroll(
        x: int, y: int, direction: Literal["up", "down", "left", "right"], context: ToolContext, amount: int = 3
    ) -> Any:
        """Scroll at a point.

        Args:
            amount: Notches of the wheel.
        """
        return await do("scroll", context, x=x, y=y, direction=direction, amount=amount)

    @tool
    async def drag(x: int, y: int, to_x: int, to_y: int, context: ToolContext) -> Any:
        """Press at one point, move to another, and let go."""
        return await do("drag", context, x=x, y=y, to_x=to_x, to_y=to_y)

    @tool
    async def key(keys: str, context: ToolContext) -> Any:
        """Press keys at the same time.

        Args:
            keys: Names joined by +, as in ctrl+c or enter.
        """
        return await do("key", context, keys=keys)

    @tool
    async def wait(context: ToolContext, seconds: float = 1.0) -> Any:
        """Wait for the screen to change."""
        return await do("wait", context, seconds=seconds)

    return [click, type_text, scroll, drag, key, wait, finished]
