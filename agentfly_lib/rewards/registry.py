"""Rewards by name."""

from __future__ import annotations

from agentfly_lib.rewards.reward import Reward
from agentfly_lib.tools.named import find_named

__all__ = ["SHIPPED_REWARDS", "get_reward"]

SHIPPED_REWARDS = {"math_equal": "agentfly_lib.rewards.math_equal:math_equal"}
"""From a name to where it is defined; imported when asked for."""


def get_reward(name: str) -> Reward:
    """A reward that we ship, or `package.module:name`. Raises `ConfigError` with the nearest name."""
    return find_named(name, SHIPPED_REWARDS, Reward)
