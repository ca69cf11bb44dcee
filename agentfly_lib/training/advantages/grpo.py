"""Group-relative advantages, normalised by the group's spread (arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

from agentfly_lib.training.advantages.groups import Floats, normalise

__all__ = ["grpo"]


def grpo(rewards: Floats) -> Floats:
    """A_i = (R_i - mean) / (std + 1e-6) with the sample standard deviation (ddof = 1); [G] -> [G].

    A group of one gives 0: there is nothing to compare it with.
    """
    return normalise(rewards)
