"""Rewards of turns: what follows a turn, discounted over turns, compared among the turns of a group.

The supervision by steps of arXiv 2402.03300 (section 4.1.3), with the returns normalised instead of the single
rewards: so a trajectory is not better for having fewer turns that brought nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentfly_lib.configs import TurnReturnsAdvantageConfig
from agentfly_lib.training.advantages.groups import Advantages, Floats, has_signal, normalise
from agentfly_lib.training.episodes import Episode

__all__ = ["discounted", "turn_returns"]


def discounted(rewards: Floats, gamma: float) -> Floats:
    """G_k = sum over j >= k of gamma^(j - k) r_j; [K] -> [K]."""
    returns = np.empty_like(rewards)
    following = 0.0
    for turn in reversed(range(len(rewards))):
        following = rewards[turn] + gamma * following
        returns[turn] = following
    return returns


def turn_returns(episodes: Sequence[Episode], config: TurnReturnsAdvantageConfig) -> Advantages:
    """(G_ik - mean) / (std + 1e-6) over all turns of the group; every token of a turn carries the turn's number."""
    if len(episodes) < 2:
        return None
    returns = [discounted(episode.rewards_of_turns, config.gamma) for episode in episodes]
    outcomes = [discounted(episode.bare.rewards_of_turns, config.gamma) for episode in episodes]
    if not has_signal(np.concatenate(outcomes)):
        return None
    flat = normalise(np.concatenate(returns))
    of_turns = np.split(flat, np.cumsum([len(each) for each in returns])[:-1])
    return [episode.per_token(each) for episode, each in zip(episodes, of_turns, strict=True)]
