"""`finish`: says that the task is done, which ends the trajectory."""

from __future__ import annotations

from agentfly_lib.tools.call import ToolResult
from agentfly_lib.tools.tool import tool

__all__ = ["finish"]


@tool(finishes=True)
def finish() -> ToolResult:
    """Say that the task is done. Nothing can be done after this."""
    return ToolResult(observation="Finished.")  # no answer of its own: what was said beside the call is the answer
