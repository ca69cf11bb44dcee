"""A bonus for using tools: meant as a small part of a composite, so that a policy that never acts begins to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.types import Trajectory

__all__ = ["tool_use"]


@reward_factory
def tool_use(*, wanted: Annotated[int, Field(ge=1)] = 1) -> Reward:
    """1 for `wanted` calls that succeeded, or more; a share of it for fewer. Calls that failed do not count."""

    def used(trajectory: Trajectory) -> float:
        metrics = trajectory.metrics
        succeeded = metrics.get("tool_calls", 0.0) - metrics.get("tool_errors", 0.0)
        return max(0.0, min(succeeded, wanted)) / wanted

    return Reward(name="tool_use", function=used, inline=True)
