"""The calculator: arithmetic, exactly, and nothing else (see `tools.arithmetic` for what is allowed)."""

from __future__ import annotations

from agentfly_lib.tools.arithmetic import ExpressionError, evaluate, format_number
from agentfly_lib.tools.call import ToolResult
from agentfly_lib.tools.tool import tool

__all__ = ["calculator"]


@tool(timeout=5.0)
def calculator(expression: str) -> ToolResult | str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, for example (12 + 3) * 4.
    """
    try:
        return format_number(evaluate(expression))
    except ExpressionError as error:
        return ToolResult(observation=f"Error: {error}", error=str(error))
