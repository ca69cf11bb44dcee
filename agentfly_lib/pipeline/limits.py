"""How long each stage of a flow may take: a last resort, above the limits of what it calls.

A limit is a sum of limits of the config. Whoever reaches it hears which key makes the most of it, and is the one to
raise. What may have to be trained again is counted from the newest checkpoint, so no limit grows with the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import StageTimeout

__all__ = [
    "SCORING_SECONDS",
    "Limit",
    "checkpoint",
    "collect",
    "collection",
    "evaluate",
    "follow",
    "replay",
    "rescore",
    "score",
    "start_engines",
    "start_learner",
    "start_workers",
    "sync",
    "update",
    "within",
]

_ENGINES = "inference.start_timeout_seconds"
_WEIGHTS = "inference.update_timeout_seconds"
_LEARNER = "learner.start_timeout_seconds"
_UPDATE = "learner.update_timeout_seconds"
_STAGE = "rollout.stage_timeout_seconds"

SCORING_SECONDS = 60.0
"""A collection ends by itself at its limit; scoring gives up only after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Of one stage."""

    seconds: float
    key: str
    """The key of the config that makes the most of it."""


@asynccontextmanager
async def within(limit: Limit, what: str) -> AsyncIterator[None]:
    """Raises `StageTimeout`, naming the key to raise, if the block takes longer; another's time limit stays its own."""
    clock = asyncio.timeout(limit.seconds)
    try:
        async with clock:
            yield
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise StageTimeout(
            f"{what} was not done after {limit.seconds:.0f} s; what it had finished is kept. If it only needs longer, "
            f"raise {limit.key}"
        ) from error


def start_engines(config: RunConfig) -> Limit:
    """Finding engines, and starting those that are not found."""
    return _limit(config, {_ENGINES: 2})


def start_learner(config: RunConfig, due: int) -> Limit:
    """Finding ranks or starting them, and training again on `due` steps."""
    return _limit(config, {_LEARNER: 2, _UPDATE: due})


def start_workers(config: RunConfig) -> Limit:
    """Both of them, one after the other where they share GPUs."""
    return _limit(config, {_ENGINES: 2, _LEARNER: 2})


def sync(config: RunConfig, due: int) -> Limit:
    """Starting both, training again on `due` steps, writing weights, and loading and proving them."""
    return _limit(config, {_ENGINES: 2, _LEARNER: 2, _UPDATE: due + 1, _WEIGHTS: 3})


def collection(config: RunConfig) -> Limit:
    """One collection; an evaluation that goes on beside it, and is served first, takes none of it away."""
    return _limit(config, {_STAGE: _stages(config)})


def collect(config: RunConfig) -> Limit:
    """Waiting for a turn, new engines with the learner's weights, and the collection."""
    parts = {_ENGINES: 2.0, _LEARNER: 2.0, _WEIGHTS: 3.0}
    return _limit(config, _queue(config), parts, seconds=collection(config).seconds)


def score(config: RunConfig) -> Limit:
    """Follows a collection, and may have as long again for what its last part brings."""
    return _limit(config, _queue(config), seconds=2 * collection(config).seconds + SCORING_SECONDS)


def rescore(config: RunConfig) -> Limit:
    """All of a step's rewards; nothing is collected."""
    return _limit(config, {_STAGE: 1}, seconds=SCORING_SECONDS)


def follow(config: RunConfig) -> Limit:
    """How long scoring waits for the next part of a collection."""
    return _limit(config, _queue(config), {_STAGE: 1}, seconds=SCORING_SECONDS)


def evaluate(config: RunConfig) -> Limit:
    """Collection and scoring, sampled and greedy."""
    return _limit(config, _queue(config), {_STAGE: 4, _ENGINES: 2, _LEARNER: 2, _WEIGHTS: 3})


def update(config: RunConfig, due: int) -> Limit:
    """A new learner that trains again on `due` steps, and the update."""
    return _limit(config, {_LEARNER: 2, _UPDATE: due + 1})


def checkpoint(config: RunConfig, due: int) -> Limit:
    """A new learner that trains again on `due` steps, the end of the checkpoint before, and this one."""
    return _limit(config, {_LEARNER: 2, _UPDATE: due + 2})


def replay(config: RunConfig, steps: int) -> Limit:
    """A new learner, so many updates, and a checkpoint."""
    return _limit(config, {_LEARNER: 2, _UPDATE: steps + 1})


def _queue(config: RunConfig) -> dict[str, float]:
    """What a stage may have to wait for: collections of earlier steps, an evaluation, an update.

    Nothing where collections and updates take turns.
    """
    lag = config.rollout.max_policy_lag
    return {_STAGE: lag * _stages(config) + 1 + config.evaluation.greedy, _UPDATE: 1} if lag else {}


def _stages(config: RunConfig) -> int:
    """What one collection may take, in times `_STAGE`."""
    return 2 + config.evaluation.greedy if config.rollout.max_policy_lag else 1


def _limit(config: RunConfig, *parts: dict[str, float], seconds: float = 0.0) -> Limit:
    """The sum of so many times each key, and of `seconds`, which are those of `_STAGE` in the main."""
    shares: dict[str, float] = {_STAGE: seconds} if seconds else {}
    for part in parts:
        for key, times in part.items():
            section, name = key.split(".")
            shares[key] = shares.get(key, 0.0) + times * getattr(getattr(config, section), name)
    return Limit(seconds=sum(shares.values()), key=max(shares, key=lambda key: shares[key]))
