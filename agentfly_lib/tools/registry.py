"""Tools by name."""

from __future__ import annotations

from typing import Any, TypeGuard

from agentfly_lib.errors import ConfigError
from agentfly_lib.named import find_named
from agentfly_lib.tools.tool import Tool

__all__ = ["SHIPPED_TOOLS", "get_tool"]

SHIPPED_TOOLS = {
    name: f"agentfly_lib.tools.{name}:{name}"
    for name in (
        "answer",
        "calculator",
        "code_interpreter",
        "create_file",
        "crop_image",
        "draw_on_image",
        "edit_file",
        "fetch_page",
        "finish",
        "grep",
        "list_files",
        "look",
        "read_file",
        "rotate_image",
        "run_shell",
        "undo_edit",
        "web_search",
        "zoom_image",
    )
}
"""From a name to where it is defined; imported when asked for."""


def get_tool(name: str) -> Tool:
    """A tool that we ship, or `package.module:name`. Raises `ConfigError` if it is not there or cannot be called."""
    found = find_named(name, SHIPPED_TOOLS, _is_tool, noun="tool", advice="put @tool on the function")
    if found.needs_instance:
        raise ConfigError(f"tool {name!r} is a method; name it on an instance")
    _ = found.arguments  # a signature that cannot be described fails here, not in a rollout
    return found


def _is_tool(found: Any) -> TypeGuard[Tool]:
    return isinstance(found, Tool)
