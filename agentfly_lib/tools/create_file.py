"""`create_file`: a new text file in the workspace."""

from __future__ import annotations

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.tool import Tool, tool
from agentfly_lib.tools.workspace import WorkspaceSettings, act

__all__ = ["create_file", "make_create_file"]


def make_create_file(settings: WorkspaceSettings) -> Tool:
    """The tool, in a sandbox with these limits."""

    @tool(needs=settings.spec, timeout=settings.timeout, settings=settings, make=make_create_file)
    async def create_file(path: str, content: str, context: ToolContext, overwrite: bool = False) -> ToolResult:
        """Write a new text file; folders on the way are made.

        Args:
            path: The file.
            content: All of its text.
            overwrite: Replace a file that is there.
        """
        return await act(context, settings, "create_file", path=path, content=content, overwrite=overwrite)

    return create_file


create_file = make_create_file(WorkspaceSettings())
"""With the limits that `WorkspaceSettings` says."""
