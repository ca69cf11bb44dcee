"""Group-relative advantages without the division by the spread, which favours easy and hard problems (2503.20783)."""

from __future__ import annotations

from agentfly_lib.training.advantages.groups import Floats, normalise

__all__ = ["dr_grpo"]


def dr_grpo(rewards: Floats) -> Floats:
    """A_i = R_i - mean; [G] -> [G]. A group of one gives 0."""
    return normalise(rewards, scale=False)
