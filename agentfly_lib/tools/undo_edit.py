"""`undo_edit`: takes back the last change that `create_file` or `edit_file` made in the workspace."""

from __future__ import annotations

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.tool import Tool, tool
from agentfly_lib.tools.workspace import WorkspaceSettings, undo

__all__ = ["make_undo_edit", "undo_edit"]


def make_undo_edit(settings: WorkspaceSettings) -> Tool:
    """The tool, in a sandbox with these limits."""

    @tool(needs=settings.spec, timeout=settings.timeout, settings=settings, make=make_undo_edit)
    async def undo_edit(context: ToolContext) -> ToolResult:
        """Take back the last change of a file that create_file or edit_file made. Can be repeated."""
        return await undo(context, settings)

    return undo_edit


undo_edit = make_undo_edit(WorkspaceSettings())
"""With the limits that `WorkspaceSettings` says."""
