"""`finish`: says that the task is done, which ends the trajectory."""

from __future__ import annotations

from agentfly_lib.tools.tool import tool

__all__ = ["finish"]


@tool(finishes=True)
def finish() -> str:
    """Say that the task is done. Nothing can be done after this."""
    return "Finished."
