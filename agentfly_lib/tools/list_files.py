"""`list_files`: what lies in a folder of the workspace."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.tool import Tool, tool
from agentfly_lib.tools.workspace import WorkspaceSettings, act

__all__ = ["list_files", "make_list_files"]


def make_list_files(settings: WorkspaceSettings) -> Tool:
    """The tool, in a sandbox with these limits."""

    @tool(needs=settings.spec, timeout=settings.timeout, settings=settings, make=make_list_files)
    async def list_files(
        context: ToolContext, path: str = ".", depth: Annotated[int, Field(ge=1, le=10)] = 2
    ) -> ToolResult:
        """List files and folders.

        Args:
            path: A folder.
            depth: How many levels down.
        """
        return await act(context, settings, "list_files", path=path, depth=depth)

    return list_files


list_files = make_list_files(WorkspaceSettings())
"""With the limits that `WorkspaceSettings` says."""
