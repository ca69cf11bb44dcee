"""Advantage estimators: rewards of one group in, one advantage per trajectory out. One estimator per file.

Every estimator gives 0 for a group of one, and never sees a trajectory that could not be scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from agentfly_lib.training.advantages.grpo import grpo

__all__ = ["ADVANTAGES", "AdvantageFunction", "grpo", "has_signal"]

AdvantageFunction = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""rewards [G] -> advantages [G]"""

ADVANTAGES: Mapping[str, AdvantageFunction] = {"grpo": grpo}
"""By `algorithm.advantage.type`."""

SIGNAL_TOLERANCE = 1e-8


def has_signal(rewards: npt.NDArray[np.float64]) -> bool:
    """False if all rewards are equal within 1e-8, or there is at most one: comparing them teaches nothing."""
    return len(rewards) > 1 and float(rewards.max() - rewards.min()) > SIGNAL_TOLERANCE
