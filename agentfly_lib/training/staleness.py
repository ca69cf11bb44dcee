"""How far the weights that sampled a step's tokens are behind those that the step updates.

Step s updates version s. With `rollout.max_policy_lag` = L its tokens are of the versions s - L .. s, because its
collection begins no earlier. Whatever else lies in its shards, after a resume that went another way, is left out of the
update, by whole groups: chains of a group are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentfly_lib.configs import RunConfig, ShardsDataConfig
from agentfly_lib.types import TrainingSample, TrajectoryGroup

__all__ = ["fresh_groups", "lag_metrics"]


def fresh_groups(groups: Sequence[TrajectoryGroup], config: RunConfig, step: int) -> list[TrajectoryGroup]:
    """Those without a token that is older than the largest lag allows; all of them where trajectories are imitated.

    A token of which nobody knows the version counts as fresh.
    """
    if isinstance(config.data, ShardsDataConfig):
        return list(groups)
    oldest = step - config.rollout.max_policy_lag
    return [group for group in groups if not _is_stale(group, oldest)]


def lag_metrics(samples: Sequence[TrainingSample], groups: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
    """Mean and largest lag, in updates, over the trained tokens whose version is known; nothing if there are none."""
    segments = {
        (trajectory.id, number): segment
        for group in groups
        for trajectory in group.trajectories
        for number, segment in enumerate(trajectory.segments)
    }
    versions = [segments[sample.trajectory_id, sample.segment].versions[sample.loss_mask] for sample in samples]
    known = np.concatenate([np.zeros(0, np.int32), *versions])
    lags = step - known[known >= 0]
    if not len(lags):
        return {}
    return {"train/policy_lag/mean": float(lags.mean()), "train/policy_lag/max": float(lags.max())}


def _is_stale(group: TrajectoryGroup, oldest: int) -> bool:
    versions = [segment.versions for trajectory in group.trajectories for segment in trajectory.segments]
    return any(bool(((each >= 0) & (each < oldest)).any()) for each in versions)
