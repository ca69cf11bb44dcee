"""From scored groups to training samples: who takes part in a group's statistics, and which tokens are trained on.

A trajectory counts once in its group however many segments it has; each segment becomes one sample that carries the
trajectory's advantage. Left out, and counted: trajectories without a reward or that broke for an infrastructure reason
(they enter neither statistics nor loss), groups whose rewards are all equal, and, if asked, truncated trajectories
(these stay in their group's statistics). Pure functions; the order of the result is that of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentfly_lib.configs import AlgorithmConfig
from agentfly_lib.errors import LearnerError, RewardError
from agentfly_lib.training.advantages import ADVANTAGES, has_signal
from agentfly_lib.types import FailureKind, Segment, TrainingSample, Trajectory, TrajectoryGroup

__all__ = ["SampleReport", "build_samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport:
    """What became of the step's trajectories."""

    groups: int = 0
    no_signal_groups: int = 0
    """Groups whose rewards are equal (or of which at most one could be scored): not in the update."""
    trajectories: int = 0
    excluded_trajectories: int = 0
    """Without a reward, broken infrastructure, or not one sampled token: neither in statistics nor in the loss."""
    masked_truncated: int = 0
    """Truncated trajectories of groups with signal that `mask_truncated` kept out of the loss."""
    trained_trajectories: int = 0
    samples: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    missing_logprobs: int = 0
    """Loss tokens whose sampling log-prob is missing (NaN)."""
    reward_mean: float = math.nan
    """Over all trajectories that could be scored, whether or not their group has a signal."""
    reward_std: float = math.nan
    advantage_mean: float = math.nan
    """Over the trajectories that are trained on, each counted once."""
    advantage_std: float = math.nan
    advantage_max_abs: float = math.nan


def build_samples(
    groups: Sequence[TrajectoryGroup], algorithm: AlgorithmConfig
) -> tuple[list[TrainingSample], SampleReport]:
    """Samples of every trajectory that is trained on, and the count of everything that is not.

    Raises `RewardError` for a reward that is not finite, and `LearnerError` for a mask on a segment's first token or
    for tokens that are not those that were sampled; all name the trajectory.
    """
    estimate = ADVANTAGES[algorithm.advantage.type]
    samples: list[TrainingSample] = []
    rewards_seen: list[float] = []
    advantages: list[float] = []
    no_signal = excluded = masked = 0
    for group in groups:
        usable = [trajectory for trajectory in group.trajectories if _usable(trajectory)]
        excluded += len(group.trajectories) - len(usable)
        rewards = np.array([trajectory.reward for trajectory in usable], dtype=np.float64)
        rewards_seen.extend(rewards.tolist())
        if not has_signal(rewards):
            no_signal += 1
            continue
        for trajectory, advantage in zip(usable, estimate(rewards), strict=True):
            if algorithm.mask_truncated and trajectory.stop.truncated:
                masked += 1
                continue
            advantages.append(float(advantage))
            samples += [
                _sample(trajectory, segment, float(advantage))
                for segment in trajectory.segments
                if segment.loss_mask.any()
            ]
    report = SampleReport(
        groups=len(groups),
        no_signal_groups=no_signal,
        trajectories=sum(len(group.trajectories) for group in groups),
        excluded_trajectories=excluded,
        masked_truncated=masked,
        trained_trajectories=len(advantages),
        samples=len(samples),
        tokens=sum(len(sample) for sample in samples),
        loss_tokens=sum(sample.num_loss_tokens for sample in samples),
        missing_logprobs=sum(int(np.isnan(sample.rollout_logprobs[sample.loss_mask]).sum()) for sample in samples),
        reward_mean=float(np.mean(rewards_seen)) if rewards_seen else math.nan,
        reward_std=float(np.std(rewards_seen)) if rewards_seen else math.nan,
        advantage_mean=float(np.mean(advantages)) if advantages else math.nan,
        advantage_std=float(np.std(advantages)) if advantages else math.nan,
        advantage_max_abs=float(np.max(np.abs(advantages))) if advantages else math.nan,
    )
    return samples, report


def _usable(trajectory: Trajectory) -> bool:
    if trajectory.reward is None:
        return False
    if trajectory.failure is not None and trajectory.failure.kind is FailureKind.INFRASTRUCTURE:
        return False
    if not math.isfinite(trajectory.reward):
        raise RewardError(
            f"trajectory {trajectory.id} has the reward {trajectory.reward}, which is not finite; "
            f"score the step again with a reward that returns a number or None"
        )
    if inexact := trajectory.metrics.get("inexact_turns"):
        raise LearnerError(
            f"trajectory {trajectory.id} cannot be trained on: of {inexact:.0f} of its turns the server gave text, but "
            f"not the sampled token ids with their log-probs; collect it with a backend that gives both"
        )
    return trajectory.num_sampled > 0


def _sample(trajectory: Trajectory, segment: Segment, advantage: float) -> TrainingSample:
    if segment.loss_mask[0]:
        raise LearnerError(
            f"trajectory {trajectory.id}: the first token of a segment is marked as sampled, but nothing precedes it "
            f"that could have predicted it; the shard was written by a faulty rollout"
        )
    return TrainingSample(
        trajectory_id=trajectory.id,
        token_ids=segment.token_ids,
        loss_mask=segment.loss_mask,
        rollout_logprobs=np.where(segment.loss_mask, segment.logprobs, np.float32(np.nan)),
        advantages=np.where(segment.loss_mask, np.float32(advantage), np.float32(0)),
    )
