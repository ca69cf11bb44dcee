"""Tools: `@tool`, how calls are executed, and the tools we ship, one per file."""

from agentfly_lib.tools.call import MalformedCall, ToolCall, ToolContext, ToolResult
from agentfly_lib.tools.execute import execute_calls
from agentfly_lib.tools.tool import Tool, tool

__all__ = ["MalformedCall", "Tool", "ToolCall", "ToolContext", "ToolResult", "execute_calls", "tool"]
