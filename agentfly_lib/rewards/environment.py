"""What the environment gave; a chain that never acted has nothing to be scored by."""

from __future__ import annotations

from agentfly_lib.rewards.reward import reward

__all__ = ["environment"]


@reward(inline=True)
def environment(env_reward: float | None) -> float | None:
    """The last reward that the trajectory's environment reported."""
    return env_reward
