"""Rejection sampling: what was good enough is imitated, the rest is left out (arXiv 2203.14465, arXiv 2304.06767)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentfly_lib.configs import AcceptedAdvantageConfig
from agentfly_lib.training.advantages.groups import Advantages
from agentfly_lib.training.episodes import Episode

__all__ = ["accepted"]


def accepted(episodes: Sequence[Episode], config: AcceptedAdvantageConfig) -> Advantages:
    """1 at every token of a trajectory whose reward is at least `min_reward`, 0 elsewhere; None if there is none."""
    least = -np.inf if config.min_reward == "none" else config.min_reward
    good = [episode.outcome >= least for episode in episodes]
    if not any(good):
        return None
    return [np.full(episode.num_tokens, float(taken)) for episode, taken in zip(episodes, good, strict=True)]
