"""Scores the shards of one step as they land, and writes rewards beside them.

The stage follows the collection through its manifest on disk, so it works in the same process, in another one, or
long after: rescoring old shards with another reward is the same call. Parts that have scores under this reward are
not scored again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from agentfly_lib.configs import RewardConfig
from agentfly_lib.errors import RewardError
from agentfly_lib.rewards.registry import reward_identity
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.rewards.scoring import score_groups, with_rewards
from agentfly_lib.store.changes import looks_at
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutManifest, read_rollout_manifest
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.store.scores import ScoreManifest, ScoreStore
from agentfly_lib.store.shards import read_part
from agentfly_lib.types import TrajectoryGroup

__all__ = ["ScoredStep", "score_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredStep:
    """The scores of one step, complete."""

    manifest: ScoreManifest
    groups: list[TrajectoryGroup]
    """Every collected group with its rewards, ordered by id."""
    busy: tuple[tuple[float, float], ...]
    """When rewards were computed: (start, end) by `time.perf_counter` of this process, in order."""


async def score_step(
    directory: StepDirectory,
    reward: Reward,
    *,
    config: RewardConfig,
    follow_seconds: float,
    on_progress: Callable[[int, int], None] | None = None,
) -> ScoredStep:
    """Scores every part, waiting for parts still to come.

    Args:
        follow_seconds: How long to wait for a collection to begin, or for its next part, before giving up.
        on_progress: Called with the trajectories scored so far and those asked for.

    Raises:
        RewardError: the collection made no progress and did not end within `follow_seconds`.
        ShardError: a file is damaged or cannot be written.
    """
    store = await asyncio.to_thread(ScoreStore, directory, reward_identity(config))
    kept = len(store.manifest.parts)
    fresh: list[TrajectoryGroup] = []
    busy: list[tuple[float, float]] = []
    scored_rows = sum(part.rows for part in store.manifest.parts)
    while True:
        rollouts = await _next(directory, store, follow_seconds)
        for part in store.missing_parts(rollouts):
            groups = await asyncio.to_thread(read_part, directory.rollouts / part.name, part)
            started = perf_counter()
            scores = await score_groups(
                reward,
                groups,
                timeout=config.timeout_seconds,
                max_concurrency=config.max_concurrency,
                retries=config.retries,
            )
            busy.append((started, perf_counter()))
            await asyncio.to_thread(store.append, part.name, scores)
            fresh += with_rewards(groups, scores)
            scored_rows += part.rows
            if on_progress is not None:
                on_progress(scored_rows, rollouts.requested)
        if rollouts.complete:
            break
    if not store.complete:
        await asyncio.to_thread(store.finish, rollouts)
    whole = kept == 0 and not rollouts.duplicates
    groups = (
        sorted(fresh, key=lambda group: group.id) if whole else await asyncio.to_thread(load_scored_groups, directory)
    )
    return ScoredStep(manifest=store.manifest, groups=groups, busy=tuple(busy))


async def _next(directory: StepDirectory, store: ScoreStore, seconds: float) -> RolloutManifest:
    """The rollout manifest, once it lists something that has no score, or is complete."""
    path = directory.rollout_manifest
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), contextlib.aclosing(looks_at(path)) as looks:
            async for _ in looks:
                manifest = await asyncio.to_thread(_manifest, directory)
                if manifest is not None and (manifest.complete or store.missing_parts(manifest)):
                    return manifest
    raise RewardError(
        f"{path}: the collection made no progress and did not end within {seconds:.0f} s; "
        "run the same command again to collect the rest"
    )


def _manifest(directory: StepDirectory) -> RolloutManifest | None:
    """None before the collection has begun."""
    return read_rollout_manifest(directory) if directory.rollout_manifest.exists() else None
