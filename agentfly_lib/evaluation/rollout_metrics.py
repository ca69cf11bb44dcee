"""Metrics of a step's rollouts: how the policy behaved, why trajectories ended, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from agentfly_lib.types import FailureKind, StopReason, TrajectoryGroup

__all__ = ["rollout_metrics"]

_MEANS = (
    "tool_calls",
    "tool_errors",
    "generate_seconds",
    "tool_seconds",
    "resource_wait_seconds",
    "prompt_tokens",
    "cached_tokens",
)


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Numbers named `rollout/<what>/<statistic>`; means are over trajectories that did not fail."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not trajectories:
        return {"rollout/trajectories/count": 0.0}
    whole = [trajectory for trajectory in trajectories if trajectory.failure is None]
    metrics = {
        "rollout/trajectories/count": float(len(trajectories)),
        "rollout/sampled_tokens/sum": float(sum(trajectory.num_sampled for trajectory in trajectories)),
    }
    if whole:
        metrics |= {
            "rollout/turns/mean": fmean(trajectory.num_turns for trajectory in whole),
            "rollout/sampled_tokens/mean": fmean(trajectory.num_sampled for trajectory in whole),
            "rollout/segments/mean": fmean(len(trajectory.segments) for trajectory in whole),
        }
        for name in _MEANS:
            metrics[f"rollout/{name}/mean"] = fmean(trajectory.metrics.get(name, 0.0) for trajectory in whole)
    stops = Counter(trajectory.stop for trajectory in trajectories)
    metrics |= {f"rollout/stop_{stop.value}/fraction": stops[stop] / len(trajectories) for stop in StopReason}
    failures = Counter(trajectory.failure.kind for trajectory in trajectories if trajectory.failure is not None)
    metrics |= {f"rollout/failed_{kind.value}/count": float(failures[kind]) for kind in FailureKind}
    return metrics
