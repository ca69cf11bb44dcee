"""A soft penalty for length (DAPO, arXiv 2503.14476): nothing up to limit - buffer, then linearly down to -1."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.types import Trajectory

__all__ = ["overlong"]


@reward_factory
def overlong(*, limit: Annotated[int, Field(ge=1)], buffer: Annotated[int, Field(ge=1)]) -> Reward:
    """With n sampled tokens: 0 up to `limit - buffer`; ((limit - buffer) - n) / buffer up to `limit`; -1 beyond.

    Raises `ConfigError` if the buffer is longer than the limit.
    """
    if buffer > limit:
        raise ConfigError(f"reward 'overlong': buffer={buffer} is more than limit={limit}")

    def penalty(trajectory: Trajectory) -> float:
        free = limit - buffer
        return max(-1.0, min(0.0, (free - trajectory.num_sampled) / buffer))

    return Reward(name="overlong", function=penalty, inline=True)
