"""What estimators have in common: when a comparison says something, and how numbers are brought to one scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from agentfly_lib.training.episodes import Episode

__all__ = ["EPSILON", "Advantages", "Estimator", "Floats", "has_signal", "normalise", "of_rewards", "whiten"]

Floats = npt.NDArray[np.float64]

Advantages = list[Floats] | None
"""For each episode of a group, one number per trained token [T_i]; None if there is nothing to learn from the group."""

Estimator = Callable[[Sequence[Episode]], Advantages]
"""From the episodes of a group to the advantages of each, or None if the group teaches nothing."""

EPSILON = 1e-6
SIGNAL_TOLERANCE = 1e-8


def has_signal(rewards: Floats) -> bool:
    """False if all rewards are equal within 1e-8, or there is at most one: comparing them teaches nothing."""
    return len(rewards) > 1 and float(rewards.max() - rewards.min()) > SIGNAL_TOLERANCE


def normalise(values: Floats, *, scale: bool = True) -> Floats:
    """(x - mean) / (std + 1e-6) with the sample standard deviation (ddof = 1), or x - mean; [N] -> [N].

    All zero without a signal: one value, or values that are equal.
    """
    if not has_signal(values):
        return np.zeros_like(values)
    centred = values - values.mean()
    return centred / (values.std(ddof=1) + EPSILON) if scale else centred


def of_rewards(function: Callable[[Floats], Floats]) -> Estimator:
    """An estimator from a function of the group's rewards, [G] -> [G]; every token carries its trajectory's number.

    Whether the group has a signal is told from the outcomes: penalties differ between any two trajectories.
    """

    def estimate(episodes: Sequence[Episode]) -> Advantages:
        if not has_signal(np.array([episode.outcome for episode in episodes])):
            return None
        advantages = function(np.array([episode.reward for episode in episodes]))
        return [np.full(episode.num_tokens, value) for episode, value in zip(episodes, advantages, strict=True)]

    return estimate


def whiten(advantages: Sequence[Floats]) -> list[Floats]:
    """(A - mean) / sqrt(var + 1e-8) over all tokens of all trajectories, with the sample variance (ddof = 1)."""
    if sum(map(len, advantages)) < 2:
        return [np.zeros_like(each) for each in advantages]
    everything = np.concatenate(advantages)
    mean, deviation = everything.mean(), np.sqrt(everything.var(ddof=1) + 1e-8)
    return [(each - mean) / deviation for each in advantages]
