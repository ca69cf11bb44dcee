"""`AutoAgent`: any kind of agent from a config, a dict, or a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs.agent import AgentConfig, AgentSettings
from agentfly_lib.configs.load import read_section
from agentfly_lib.errors import ConfigError

__all__ = ["AutoAgent"]

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AgentConfig)
_ALIASES = {"agent_type": "type", "model": "model_name_or_path"}
_OPTIONS = ("backend", "backend_config", "chain_timeout_seconds", "max_concurrency", "reward_fn")
"""Keys of a dict that are arguments of the class and not part of a recipe's `[agent]`."""


class AutoAgent:
    """Makes agents; there are no instances of it."""

    def __new__(cls) -> AutoAgent:
        """Raises `TypeError`."""
        raise TypeError("AutoAgent cannot be instantiated; call AutoAgent.from_config(config)")

    @staticmethod
    def from_config(
        config: AgentSettings | Mapping[str, Any] | str | Path,
        model_name_or_path: str | Path | None = None,
        **options: Any,
    ) -> Agent:
        """The agent that a config describes.

        config: a config of `configs.agent`; a dict with its keys, and beside them `model_name_or_path`,
            `backend_config`, `reward_name`, and tools as objects where one likes; or a TOML file with a table `[agent]`
            and, if it is to say it, `[model]`, as recipes have.
        model_name_or_path: goes before what the config says.
        options: more arguments of the agent's class.

        Raises `ConfigError` naming the key that cannot be, or that is missing.
        """
        if not isinstance(config, AgentSettings):
            values = _read_file(Path(config)) if isinstance(config, str | Path) else dict(config)
            config, given = _take_apart(values)
            model_name_or_path = model_name_or_path or given.pop("model_name_or_path", None)
            options = given | options
        if model_name_or_path is None:
            raise ConfigError("no model: give model_name_or_path, or name one in the config")
        options.pop("model_name_or_path", None)
        return build_agent(config, model_name_or_path, **options)  # type: ignore[arg-type]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read an agent from {path}: {error}") from error
    if not isinstance(values.get("agent"), dict):
        raise ConfigError(f"{path} has no table [agent]")
    agent = dict(values["agent"])
    model = values.get("model", {})
    if isinstance(model, dict) and "name_or_path" in model:
        agent["model_name_or_path"] = model["name_or_path"]
    return agent


def _take_apart(values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The config that a dict holds, and the arguments of the class beside it."""
    renamed = {_ALIASES.get(key, key): value for key, value in values.items()}
    given = {key: renamed.pop(key) for key in ("model_name_or_path", *_OPTIONS) if key in renamed}
    if "reward_name" in renamed:
        renamed["reward"] = {"name": renamed.pop("reward_name")}
    tools = renamed.get("tools")
    if tools is not None and not all(isinstance(item, str) for item in tools):
        given["tools"] = renamed.pop("tools")
    return read_section(_ADAPTER, renamed, section="agent", where="the agent's config"), given
