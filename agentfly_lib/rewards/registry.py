"""Rewards by name, and the reward of a recipe."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from agentfly_lib.configs.agent import RewardConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.named import find_named
from agentfly_lib.rewards.composite import CompositeReward, Part
from agentfly_lib.rewards.factory import RewardFactory
from agentfly_lib.rewards.reward import Reward

__all__ = ["SHIPPED_REWARDS", "build_reward", "get_reward", "reward_identity"]

SHIPPED_REWARDS = {
    "anls": "agentfly_lib.rewards.anls:anls",
    "code_tests": "agentfly_lib.rewards.code_tests:code_tests",
    "environment": "agentfly_lib.rewards.environment:environment",
    "environment_return": "agentfly_lib.rewards.environment:environment_return",
    "exact_match": "agentfly_lib.rewards.exact_match:exact_match",
    "format": "agentfly_lib.rewards.format:format_followed",
    "gui_action": "agentfly_lib.rewards.gui_action:gui_action",
    "group_judge": "agentfly_lib.rewards.group_judge:group_judge",
    "llm_judge": "agentfly_lib.rewards.llm_judge:llm_judge",
    "math_equal": "agentfly_lib.rewards.math_equal:math_equal",
    "overlong": "agentfly_lib.rewards.overlong:overlong",
    "token_f1": "agentfly_lib.rewards.token_f1:token_f1",
    "tool_use": "agentfly_lib.rewards.tool_use:tool_use",
    "vqa_accuracy": "agentfly_lib.rewards.vqa_accuracy:vqa_accuracy",
}
"""From a name to where it is defined; imported when asked for."""


def get_reward(name: str, settings: Mapping[str, Any] | None = None) -> Reward:
    """A reward that we ship, or `package.module:name`; `settings` are for those made by `@reward_factory`.

    Raises `ConfigError` with the nearest name or setting.
    """
    found = find_named(
        name, SHIPPED_REWARDS, _is_reward, noun="reward", advice="put @reward, or @reward_factory, on the function"
    )
    if isinstance(found, RewardFactory):
        return found.make(settings or {})
    if settings:
        raise ConfigError(f"reward {name!r} has no settings, and was given {', '.join(settings)}")
    return found


def _is_reward(found: Any) -> TypeGuard[Reward | RewardFactory[...]]:
    return isinstance(found, Reward | RewardFactory)


def build_reward(config: RewardConfig) -> Reward:
    """The reward of a recipe: one by name, or several as a weighted sum. Raises `ConfigError`."""
    if not config.parts:
        return get_reward(config.name, config.settings)
    parts = tuple(
        Part(
            reward=get_reward(part.name, part.settings),
            weight=part.weight,
            optional=part.optional,
            name=part.label or "",
        )
        for part in config.parts
    )
    return CompositeReward(name=config.name, parts=parts)


def reward_identity(config: RewardConfig) -> str:
    """What scores are kept by: `config.identity`, and for rewards of the user's own a hash of their source files.

    A file that is edited while a program runs counts from the program's next start, as its code does.
    """
    asked = config.parts or (config,)
    codes = [_code(each.name) for each in asked if ":" in each.name]
    return f"{config.identity}@{hashlib.sha256(''.join(codes).encode()).hexdigest()[:8]}" if codes else config.identity


@functools.cache
def _code(name: str) -> str:
    """Hash of the files that a reward is written in: where it has its name, and where its function is defined."""
    found = find_named(name, SHIPPED_REWARDS, _is_reward, noun="reward", advice="put @reward on the function")
    written: list[str] = []
    for where in (sys.modules[name.partition(":")[0]], inspect.unwrap(getattr(found, "function", found))):
        try:
            written.append(hashlib.sha256(Path(inspect.getsourcefile(where) or "").read_bytes()).hexdigest())
        except (OSError, TypeError):  # made in a shell, or not by Python code
            written.append(name)
    return "".join(written)
