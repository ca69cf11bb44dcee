"""An advantage estimator of the user's own, found by its import path and checked where it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from agentfly_lib.configs import CustomAdvantageConfig
from agentfly_lib.errors import LearnerError
from agentfly_lib.named import find_named
from agentfly_lib.training.advantages.groups import Advantages, Floats
from agentfly_lib.training.episodes import Episode

__all__ = ["custom", "load_advantage"]


def load_advantage(path: str) -> Callable[[Sequence[Episode]], Any]:
    """The function that `package.module:name` names. Raises `ConfigError` if there is none."""
    return find_named(path, {}, _is_function, noun="algorithm.advantage.function", advice="name a function")


def _is_function(found: Any) -> TypeGuard[Callable[[Sequence[Episode]], Any]]:
    return callable(found)


def custom(episodes: Sequence[Episode], config: CustomAdvantageConfig) -> Advantages:
    """What the function says: a number or [T_i] for each episode, or None. Raises `LearnerError` if it is neither."""
    answer = load_advantage(config.function)(episodes)
    if answer is None:
        return None
    if len(answer) != len(episodes):
        raise LearnerError(f"{config.function} gave {len(answer)} advantages for {len(episodes)} episodes")
    return [_spread(config.function, episode, value) for episode, value in zip(episodes, answer, strict=True)]


def _spread(function: str, episode: Episode, value: Any) -> Floats:
    values = np.asarray(value, dtype=np.float64)
    if values.shape not in ((), (episode.num_tokens,)):
        raise LearnerError(
            f"{function} gave an advantage of shape {values.shape} for {episode.id}, which has {episode.num_tokens} "
            "trained tokens; return one number, or one for each of them"
        )
    if not math.isfinite(float(np.abs(values).max())):
        raise LearnerError(f"{function} gave an advantage that is not finite for {episode.id}")
    return np.broadcast_to(values, (episode.num_tokens,)).copy()
