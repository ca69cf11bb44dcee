"""Generalised advantage estimation over trained tokens (arXiv 1506.02438, equation 16).

Prompts and tool results are no steps of the policy: the value after a turn's last token is that before the next turn's
first. Nothing follows the last token of a trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentfly_lib.configs import GaeAdvantageConfig
from agentfly_lib.training.advantages.groups import Advantages, Floats
from agentfly_lib.training.episodes import Episode

__all__ = ["gae", "gae_of_group"]


def gae(rewards: Floats, values: Floats, *, gamma: float, lam: float) -> Floats:
    """A_t = d_t + gamma lam A_(t+1), with d_t = r_t + gamma V_(t+1) - V_t; [T], [T] -> [T].

    The returns that the value head learns are A + V.
    """
    advantages = np.empty_like(values)
    following_value = following = 0.0
    for token in reversed(range(len(values))):
        error = rewards[token] + gamma * following_value - values[token]
        following = error + gamma * lam * following
        following_value = values[token]
        advantages[token] = following
    return advantages


def gae_of_group(episodes: Sequence[Episode], config: GaeAdvantageConfig) -> Advantages:
    """Of each episode by itself; before the learner has measured values, they count as 0."""
    return [
        gae(
            episode.rewards_of_tokens,
            np.zeros(episode.num_tokens) if episode.values is None else episode.values,
            gamma=config.gamma,
            lam=config.lam,
        )
        for episode in episodes
    ]
