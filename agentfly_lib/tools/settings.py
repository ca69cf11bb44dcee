"""Settings of a tool, as a recipe gives them: a pydantic model of the tool's own, and errors that name the key.

[agent.tool_settings.web_search]
corpus = "data/pages.jsonl"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from agentfly_lib.configs.base import Config
from agentfly_lib.configs.faults import explain
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
        raise ConfigError(explain(error, kind.model_fields, where=f"tool_settings.{tool}")) from error
