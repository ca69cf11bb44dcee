"""What a reward said of a trajectory, as the ledger counts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentfly_lib.errors import RewardError
from agentfly_lib.types import Outcome, StopReason

__all__ = ["Score", "outcome_of"]


def outcome_of(stop: StopReason, reward: float | None) -> Outcome:
    """What the ledger calls a trajectory: failed, else truncated, else dropped if it has no reward, else scored."""
    if stop is StopReason.FAILED:
        return Outcome.FAILED
    if stop.truncated:
        return Outcome.TRUNCATED
    return Outcome.DROPPED if reward is None else Outcome.SCORED


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a reward said of one trajectory. Raises `RewardError` for a reward that cannot be one."""

    trajectory_id: str
    outcome: Outcome
    reward: float | None
    """None: it could not be scored, which is not 0."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components of the reward."""
    seconds: float = 0.0
    error: str | None = None
    """Why there is no reward."""

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise RewardError(f"trajectory {self.trajectory_id}: a reward must be finite, got {self.reward}")
        if self.outcome is Outcome.SCORED and self.reward is None:
            raise RewardError(f"trajectory {self.trajectory_id} cannot be scored without a reward")
        if self.outcome in (Outcome.FAILED, Outcome.DROPPED) and self.reward is not None:
            raise RewardError(f"trajectory {self.trajectory_id} is {self.outcome} and so has no reward")
