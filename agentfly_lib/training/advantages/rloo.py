"""REINFORCE with the mean of the other chains as baseline (arXiv 2402.14740, section 2.2)."""

from __future__ import annotations

from agentfly_lib.training.advantages.groups import Floats, normalise

__all__ = ["rloo"]


def rloo(rewards: Floats) -> Floats:
    """A_i = R_i - mean of the others = G / (G - 1) (R_i - mean); [G] -> [G]. A group of one gives 0."""
    size = len(rewards)
    return normalise(rewards, scale=False) * (size / (size - 1) if size > 1 else 0.0)
