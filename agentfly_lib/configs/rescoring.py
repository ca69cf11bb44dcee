"""The reward with which stored rollouts are scored again: said by name, in a file, by single keys, or all three."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from agentfly_lib.configs.agent import RewardConfig
from agentfly_lib.configs.load import assign_key, parse_overrides, read_section
from agentfly_lib.errors import ConfigError

__all__ = ["rescoring_reward"]

_PREFIX = "agent.reward."
_LIMITS = {"timeout_seconds", "max_concurrency", "retries"}


def rescoring_reward(
    base: RewardConfig, *, name: str | None = None, file: Path | None = None, overrides: Sequence[str] = ()
) -> RewardConfig:
    """The reward that is asked for; its limits are the run's own (`base`) where nothing else is said.

    name: goes before the file's. file: TOML, either a recipe with `[agent.reward]` or that table's keys by themselves.
    overrides: as everywhere, `agent.reward.settings.model=judge`.

    Raises `ConfigError` naming what cannot be, or if no reward is named.
    """
    values: dict[str, Any] = {} if file is None else _read(file)
    if name is not None:
        values["name"] = name
    for key, value in parse_overrides(overrides):
        if not key.startswith(_PREFIX):
            raise ConfigError(f"--set {key}: only keys of the reward can be changed here, such as {_PREFIX}settings.x")
        assign_key(values, key.removeprefix(_PREFIX), value)
    if "name" not in values and not values.get("parts"):
        raise ConfigError("no reward: give --reward NAME, or a file with --reward-config")
    limits = base.model_dump(include=_LIMITS)
    where = "the reward" if file is None else str(file)
    return read_section(TypeAdapter(RewardConfig), limits | values, section=_PREFIX.rstrip("."), where=where)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read a reward from {file}: {error}") from error
    agent = values.get("agent")
    if not isinstance(agent, dict):
        return values
    if not isinstance(agent.get("reward"), dict):
        raise ConfigError(f"{file} has no table [agent.reward]")
    return dict(agent["reward"])
