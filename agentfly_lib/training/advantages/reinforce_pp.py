"""REINFORCE++: the return that follows each token; it is then whitened over the step (arXiv 2501.03262).

The comparison is with the whole step and not with the problem's other chains, so one chain is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentfly_lib.training.advantages.groups import Advantages, Floats
from agentfly_lib.training.episodes import Episode

__all__ = ["reinforce_pp", "returns_to_go"]


def returns_to_go(rewards: Floats) -> Floats:
    """Undiscounted sum of the rewards of each token and all after it; [T] -> [T]."""
    return rewards[::-1].cumsum()[::-1]


def reinforce_pp(episodes: Sequence[Episode]) -> Advantages:
    """Returns-to-go of r_t = R 1[t is the last] - beta k1_t, before they are whitened."""
    return [returns_to_go(episode.outcome_at_the_end) for episode in episodes]
