"""Shows the problem's own picture: a tool whose result is an image."""

from __future__ import annotations

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.tool import tool

__all__ = ["look"]


@tool(timeout=5.0)
def look(context: ToolContext) -> ToolResult:
    """Look at the picture."""
    picture = context.problem.columns.get("picture")
    if not isinstance(picture, str) or not picture:
        return ToolResult.refused("there is no picture.")
    return ToolResult(observation="", images=(picture,))
