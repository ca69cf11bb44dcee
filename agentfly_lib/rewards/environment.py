"""What the environment gave; what a chain that never acted is worth, is for the recipe to say."""

from __future__ import annotations

from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.reward import Reward, reward

__all__ = ["environment", "environment_return"]


@reward(inline=True)
def environment(env_reward: float | None) -> float | None:
    """The last reward that the trajectory's environment reported."""
    return env_reward


@reward_factory
def environment_return(*, idle: float = 0.0) -> Reward:
    """The same, and `idle` for a chain that never acted.

    With `environment` such a chain cannot be scored and is dropped, so that a policy is never told that it should act.
    """

    @reward(name="environment_return", inline=True)
    def score(env_reward: float | None) -> float:
        return idle if env_reward is None else env_reward

    return score
