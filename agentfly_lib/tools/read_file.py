"""`read_file`: a text file of the workspace, with line numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.tool import Tool, tool
from agentfly_lib.tools.workspace import WorkspaceSettings, act

__all__ = ["make_read_file", "read_file"]


def make_read_file(settings: WorkspaceSettings) -> Tool:
    """The tool, in a sandbox with these limits."""

    @tool(needs=settings.spec, timeout=settings.timeout, settings=settings, make=make_read_file)
    async def read_file(
        path: str,
        context: ToolContext,
        first_line: Annotated[int, Field(ge=1)] = 1,
        last_line: Annotated[int, Field(ge=1)] | None = None,
    ) -> ToolResult:
        """Read a text file. Every line is shown with its number and a tab.

        Args:
            path: The file.
            first_line: Where to begin.
            last_line: Where to end; the end of the file if not given.
        """
        return await act(context, settings, "read_file", path=path, first_line=first_line, last_line=last_line)

    return read_file


read_file = make_read_file(WorkspaceSettings())
"""With the limits that `WorkspaceSettings` says."""
