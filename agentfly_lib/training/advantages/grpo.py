"""Group-relative advantages, normalised by the group's spread (arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["grpo"]

EPSILON = 1e-6


def grpo(rewards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A_i = (R_i - mean) / (std + 1e-6) with the sample standard deviation (ddof = 1); [G] -> [G].

    A group of one gives 0: there is nothing to compare it with.
    """
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON)
