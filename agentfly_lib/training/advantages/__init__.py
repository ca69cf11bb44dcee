"""Advantage estimators: the episodes of one group in, a number for every trained token out. One estimator per file.

An estimator never sees a trajectory that could not be scored. One that compares within the group gives nothing to a
group of one, or of equal rewards; what is left is whitened over the whole step where the estimator's config says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentfly_lib.configs import AdvantageConfig
from agentfly_lib.training.advantages.accepted import accepted
from agentfly_lib.training.advantages.custom import custom
from agentfly_lib.training.advantages.dr_grpo import dr_grpo
from agentfly_lib.training.advantages.gae import gae, gae_of_group
from agentfly_lib.training.advantages.gigpo import gigpo
from agentfly_lib.training.advantages.groups import Advantages, Estimator, has_signal, of_rewards, whiten
from agentfly_lib.training.advantages.grpo import grpo
from agentfly_lib.training.advantages.reinforce_pp import reinforce_pp
from agentfly_lib.training.advantages.rloo import rloo
from agentfly_lib.training.advantages.turn_returns import turn_returns
from agentfly_lib.training.episodes import Episode

__all__ = [
    "ADVANTAGES",
    "Advantages",
    "Estimator",
    "accepted",
    "custom",
    "dr_grpo",
    "estimator",
    "gae",
    "gigpo",
    "grpo",
    "has_signal",
    "reinforce_pp",
    "rloo",
    "turn_returns",
    "whiten",
]


def _plain(estimate: Estimator) -> Callable[[Sequence[Episode], Any], Advantages]:
    """One that has no settings."""

    def with_settings(episodes: Sequence[Episode], config: Any) -> Advantages:
        del config
        return estimate(episodes)

    return with_settings


ADVANTAGES: Mapping[str, Callable[[Sequence[Episode], Any], Advantages]] = MappingProxyType(
    {
        "grpo": _plain(of_rewards(grpo)),
        "dr_grpo": _plain(of_rewards(dr_grpo)),
        "rloo": _plain(of_rewards(rloo)),
        "reinforce_pp": _plain(reinforce_pp),
        "reinforce_pp_baseline": _plain(of_rewards(dr_grpo)),
        "gigpo": gigpo,
        "turn_returns": turn_returns,
        "gae": gae_of_group,
        "accepted": accepted,
        "custom": custom,
    }
)
"""By `algorithm.advantage.type`."""


def estimator(config: AdvantageConfig) -> Estimator:
    """The estimator of a config, ready for groups."""
    estimate = ADVANTAGES[config.type]
    return lambda episodes: estimate(episodes, config)
