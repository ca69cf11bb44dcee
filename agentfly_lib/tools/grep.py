"""`grep`: lines of the workspace's text files that match a regular expression."""

from __future__ import annotations

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.tool import Tool, tool
from agentfly_lib.tools.workspace import WorkspaceSettings, act

__all__ = ["grep", "make_grep"]


def make_grep(settings: WorkspaceSettings) -> Tool:
    """The tool, in a sandbox with these limits."""

    @tool(needs=settings.spec, timeout=settings.timeout, settings=settings, make=make_grep)
    async def grep(pattern: str, context: ToolContext, path: str = ".") -> ToolResult:
        """Find lines in text files.

        Args:
            pattern: A regular expression, as Python writes them.
            path: A file, or a folder with all below it.
        """
        return await act(context, settings, "grep", pattern=pattern, path=path)

    return grep


grep = make_grep(WorkspaceSettings())
"""With the limits that `WorkspaceSettings` says."""
