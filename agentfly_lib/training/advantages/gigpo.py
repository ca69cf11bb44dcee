"""Group-in-group: beside the trajectory's advantage, that of each turn among those begun in the same state.

Chains of one problem pass through the same states (the start, a page they all open), so what each did there can be
compared without another rollout. States are equal if the policy was told the same; they may lie in different chains or
be met twice in one (arXiv 2505.10978).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from agentfly_lib.configs import GigpoAdvantageConfig
from agentfly_lib.training.advantages.groups import Advantages, Floats, normalise
from agentfly_lib.training.advantages.turn_returns import discounted
from agentfly_lib.training.episodes import Episode

__all__ = ["gigpo", "step_advantages"]


def step_advantages(returns: Sequence[Floats], states: Sequence[Sequence[str]], *, scale: bool) -> list[Floats]:
    """Each turn's return, normalised among the turns that began in the same state; [K_i] for each of G chains.

    A state that only one turn began in gives that turn 0.
    """
    members: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for chain, of_chain in enumerate(states):
        for turn, state in enumerate(of_chain):
            members[state].append((chain, turn))
    advantages = [np.zeros_like(each) for each in returns]
    for places in members.values():
        values = normalise(np.array([returns[chain][turn] for chain, turn in places]), scale=scale)
        for (chain, turn), value in zip(places, values, strict=True):
            advantages[chain][turn] = value
    return advantages


def gigpo(episodes: Sequence[Episode], config: GigpoAdvantageConfig) -> Advantages:
    """A_episode + omega A_step for every token of a turn."""
    if len(episodes) < 2:
        return None
    teaches = any(each.any() for each in _of_turns([episode.bare for episode in episodes], config))
    if not teaches:
        return None
    return [
        episode.per_token(of_turns) for episode, of_turns in zip(episodes, _of_turns(episodes, config), strict=True)
    ]


def _of_turns(episodes: Sequence[Episode], config: GigpoAdvantageConfig) -> list[Floats]:
    whole = normalise(np.array([episode.reward for episode in episodes]), scale=config.normalise)
    returns = [discounted(episode.rewards_of_turns, config.gamma) for episode in episodes]
    steps = step_advantages(returns, [episode.states for episode in episodes], scale=config.normalise)
    return [value + config.omega * of_turns for value, of_turns in zip(whole, steps, strict=True)]
