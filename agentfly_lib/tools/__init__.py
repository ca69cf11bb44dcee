"""Tools: `@tool`, how calls are executed, and the tools we ship, one per file (`get_tool` finds them by name)."""

from agentfly_lib.tools.calculator import calculator
from agentfly_lib.tools.call import MalformedCall, ToolCall, ToolContext, ToolResult
from agentfly_lib.tools.execute import execute_calls
from agentfly_lib.tools.registry import get_tool
from agentfly_lib.tools.settings import ToolSettings
from agentfly_lib.tools.tool import Tool, tool

__all__ = [
    "MalformedCall",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolResult",
    "ToolSettings",
    "calculator",
    "execute_calls",
    "get_tool",
    "tool",
]
