"""Settings of a tool, as a recipe gives them: a pydantic model of the tool's own, and errors that name the key.

[agent.tool_settings.web_search]
corpus = "data/pages.jsonl"
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from agentfly_lib.configs.base import Config
from agentfly_lib.errors import ConfigError

__all__ = ["ToolSettings", "read_settings"]


class ToolSettings(Config):
    """Base of all settings of tools: frozen, no unknown keys."""

    def check(self, tool: str) -> None:
        """Raises `ConfigError` if a tool with these settings cannot work here."""


Settings = TypeVar("Settings", bound=ToolSettings)


def read_settings(kind: type[Settings], values: Mapping[str, Any], *, tool: str) -> Settings:
    """Checks values against a model. Raises `ConfigError` that names each culprit under `tool_settings.<tool>`."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(kind, dict(fault), tool) for fault in error.errors())) from error


def _explain(kind: type[ToolSettings], fault: Mapping[str, Any], tool: str) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join(["tool_settings", tool, *path])
    if fault["type"] == "extra_forbidden" and len(path) == 1:
        near = difflib.get_close_matches(path[0], kind.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"valid keys: {', '.join(kind.model_fields)}"
        return f"unknown key {key}: {hint}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{key} = {fault['input']!r}: {message}" if path else f"{key}: {message}"
