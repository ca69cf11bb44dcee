"""`edit_file`: replaces a passage of a text file in the workspace."""

from __future__ import annotations

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.tool import Tool, tool
from agentfly_lib.tools.workspace import WorkspaceSettings, act

__all__ = ["edit_file", "make_edit_file"]


def make_edit_file(settings: WorkspaceSettings) -> Tool:
    """The tool, in a sandbox with these limits."""

    @tool(needs=settings.spec, timeout=settings.timeout, settings=settings, make=make_edit_file)
    async def edit_file(path: str, old: str, new: str, context: ToolContext) -> ToolResult:
        """Replace a passage of a text file.

        Args:
            path: The file.
            old: The passage, exactly as it stands there, without line numbers. It must occur once.
            new: What comes in its place.
        """
        return await act(context, settings, "edit_file", path=path, old=old, new=new)

    return edit_file


edit_file = make_edit_file(WorkspaceSettings())
"""With the limits that `WorkspaceSettings` says."""
