"""Tools by name, as recipes write them: one that we ship, or `package.module:name` of one of yours."""

from __future__ import annotations

import difflib
import importlib

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools.tool import Tool

__all__ = ["SHIPPED_TOOLS", "get_tool"]

SHIPPED_TOOLS = {"calculator": "agentfly_lib.tools.calculator:calculator"}
"""From a name to where it is defined; imported when asked for."""


def get_tool(name: str) -> Tool:
    """Finds a tool and reads its signature. Raises `ConfigError` that says what is wrong with the name."""
    if ":" not in name and name not in SHIPPED_TOOLS:
        near = difflib.get_close_matches(name, SHIPPED_TOOLS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"tools we ship: {', '.join(sorted(SHIPPED_TOOLS))}"
        raise ConfigError(f"unknown tool {name!r}: {hint} A tool of your own is named as package.module:name")
    module_name, _, attribute = SHIPPED_TOOLS.get(name, name).partition(":")
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise ConfigError(f"tool {name!r}: cannot import {module_name}: {error}") from error
    except AttributeError as error:
        raise ConfigError(f"tool {name!r}: {module_name} has no {attribute}") from error
    if not isinstance(found, Tool):
        raise ConfigError(f"tool {name!r} is a {type(found).__name__}; put @tool on the function")
    if found.needs_instance:
        raise ConfigError(f"tool {name!r} is a method; name it on an instance")
    _ = found.arguments  # a signature that cannot be described fails here, not in a rollout
    return found
