"""`answer`: hands in the final answer, which ends the trajectory."""

from __future__ import annotations

from agentfly_lib.tools.tool import tool

__all__ = ["answer"]


@tool(finishes=True)
def answer(answer: str) -> str:
    """Give the final answer. Nothing can be done after this.

    Args:
        answer: The answer alone, without an explanation.
    """
    return answer
