"""From scored groups to training samples: who takes part in a group's statistics, and which tokens are trained on.

A trajectory counts once in its group however many segments it has; each segment becomes one sample that carries the
trajectory's advantages. Left out, and counted: trajectories without a reward or that broke for an infrastructure reason
(they enter neither statistics nor loss), groups in which there is nothing to compare, trajectories that are not
accepted where only accepted ones are imitated, and, if asked, truncated trajectories (these stay in their group's
statistics). Pure functions of the whole step, the same on every rank; the order of the result is that of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from agentfly_lib.configs import AcceptedAdvantageConfig, AlgorithmConfig
from agentfly_lib.errors import LearnerError, RewardError
from agentfly_lib.training.advantages import estimator, has_signal, whiten
from agentfly_lib.training.episodes import Episode, episode_of
from agentfly_lib.types import FailureKind, Segment, TrainingSample, Trajectory, TrajectoryGroup

__all__ = ["Measured", "SampleReport", "StepSamples", "build_samples"]

Floats = npt.NDArray[np.float64]
MaskArray = npt.NDArray[np.bool_]


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
    rejected_trajectories: int = 0
    """Of groups with an accepted trajectory, those that are not accepted, or repeat one that is."""
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
    """Over the trajectories that are trained on, each counted once with its mean over tokens."""
    advantage_std: float = math.nan
    advantage_max_abs: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What the learner measured of one sample at the start of the step, at its trained tokens [N]."""

    penalties: Floats | None = None
    """KL penalty, coefficient included, where it is taken from the reward."""
    values: Floats | None = None
    """Of the value head."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSamples:
    """All that a step trains on."""

    samples: list[TrainingSample]
    algorithm: AlgorithmConfig
    groups: list[list[Episode]]
    """Every group with a signal: its episodes, also those that are in its statistics alone."""
    counts: SampleReport
    """The report, but for what is told from the advantages."""

    @cached_property
    def samples_of(self) -> Mapping[str, list[int]]:
        """Trajectory id -> places of its samples, in the order of its segments."""
        places: dict[str, list[int]] = {}
        for index, sample in enumerate(self.samples):
            places.setdefault(sample.trajectory_id, []).append(index)
        return places

    def measured(self, measurements: Sequence[Measured]) -> tuple[StepSamples, list[Floats]]:
        """The same samples with the advantages that follow from measurements (one for each sample).

        Returns them with the returns that a value head should learn, one array [N] for each sample (the advantages
        before they are whitened, plus the values; empty without values).
        """
        groups = [[self._with(episode, measurements) for episode in group] for group in self.groups]
        raw = _estimate(groups, self.algorithm)
        step = replace(self, groups=groups, samples=self._spread(_finish(raw, self.algorithm, self.samples_of.keys())))
        if not self.algorithm.has_values:
            return step, [np.zeros(0)] * len(self.samples)
        values = {episode.id: episode.values for group in groups for episode in group if episode.values is not None}
        returns = {name: raw[name] + values[name] for name in self.samples_of}
        return step, self._cut(returns)

    @property
    def report(self) -> SampleReport:
        """What became of the step's trajectories, with the advantages as they are now."""
        samples = self.samples
        means, largest = [], 0.0
        for places in self.samples_of.values():
            trained = np.concatenate([samples[index].advantages[samples[index].loss_mask] for index in places])
            means.append(float(trained.astype(np.float64).mean()))
            largest = max(largest, float(np.abs(trained).max()))
        return replace(
            self.counts,
            trained_trajectories=len(means),
            samples=len(samples),
            tokens=sum(len(sample) for sample in samples),
            loss_tokens=sum(sample.num_loss_tokens for sample in samples),
            missing_logprobs=sum(int(np.isnan(sample.rollout_logprobs[sample.loss_mask]).sum()) for sample in samples),
            advantage_mean=float(np.mean(means)) if means else math.nan,
            advantage_std=float(np.std(means)) if means else math.nan,
            advantage_max_abs=largest if means else math.nan,
        )

    def _with(self, episode: Episode, measurements: Sequence[Measured]) -> Episode:
        of_episode = [measurements[index] for index in self.samples_of.get(episode.id, ())]
        penalties = [each.penalties for each in of_episode if each.penalties is not None]
        values = [each.values for each in of_episode if each.values is not None]
        return episode.measured(
            penalties=np.concatenate(penalties) if penalties else None,
            values=np.concatenate(values) if values else None,
        )

    def _spread(self, advantages: Mapping[str, Floats]) -> list[TrainingSample]:
        return [
            replace(sample, advantages=_place(sample.loss_mask, values))
            for sample, values in zip(self.samples, self._cut(advantages), strict=True)
        ]

    def _cut(self, of_trajectories: Mapping[str, Floats]) -> list[Floats]:
        """Numbers for each trajectory's trained tokens as numbers for each sample's."""
        cut = [np.zeros(0)] * len(self.samples)
        for name, places in self.samples_of.items():
            ends = np.cumsum([self.samples[index].num_loss_tokens for index in places])
            for index, part in zip(places, np.split(of_trajectories[name], ends[:-1]), strict=True):
                cut[index] = part
        return cut


def build_samples(groups: Sequence[TrajectoryGroup], algorithm: AlgorithmConfig) -> StepSamples:
    """Samples of every trajectory that is trained on, and the count of everything that is not.

    Where advantages need measurements of the learner, they are first those without a penalty and with values of 0.
    Raises `RewardError` for a reward that is not finite, and `LearnerError` for a mask on a segment's first token or
    for tokens that are not those that were sampled; all name the trajectory.
    """
    kept: list[list[Episode]] = []
    trained: list[Trajectory] = []
    rewards: list[float] = []
    no_signal = excluded = masked = rejected = 0
    estimate, seen = estimator(algorithm.advantage), set[tuple[str, bytes]]()
    for group in groups:
        usable = [trajectory for trajectory in group.trajectories if _usable(trajectory, algorithm)]
        excluded += len(group.trajectories) - len(usable)
        rewards += [float(trajectory.reward or 0.0) for trajectory in usable]
        episodes = [episode_of(trajectory, _masks(trajectory, algorithm)) for trajectory in usable]
        advantages = estimate(episodes) if episodes else None
        if advantages is None:
            no_signal += 1
            continue
        kept.append(episodes)
        for trajectory, of_tokens in zip(usable, advantages, strict=True):
            if algorithm.mask_truncated and trajectory.stop.truncated:
                masked += 1
            elif isinstance(algorithm.advantage, AcceptedAdvantageConfig) and (
                not of_tokens.any() or (algorithm.advantage.distinct and _repeats(trajectory, seen))
            ):
                rejected += 1
            else:
                trained.append(trajectory)
    if algorithm.advantage.compares == "batch" and not algorithm.needs_measurements and _all_equal(kept):
        no_signal, kept, trained = len(groups), [], []
    finished = _finish(_estimate(kept, algorithm), algorithm, [trajectory.id for trajectory in trained])
    return StepSamples(
        samples=[
            sample
            for trajectory in trained
            for sample in _samples(trajectory, finished[trajectory.id], _masks(trajectory, algorithm))
        ],
        algorithm=algorithm,
        groups=kept,
        counts=SampleReport(
            groups=len(groups),
            no_signal_groups=no_signal,
            trajectories=sum(len(group.trajectories) for group in groups),
            excluded_trajectories=excluded,
            masked_truncated=masked,
            rejected_trajectories=rejected,
            reward_mean=float(np.mean(rewards)) if rewards else math.nan,
            reward_std=float(np.std(rewards)) if rewards else math.nan,
        ),
    )


def _estimate(groups: Sequence[Sequence[Episode]], algorithm: AlgorithmConfig) -> dict[str, Floats]:
    """Trajectory id -> advantages [T_i], before they are whitened."""
    estimate = estimator(algorithm.advantage)
    found: dict[str, Floats] = {}
    for episodes in groups:
        advantages = estimate(episodes)
        for place, episode in enumerate(episodes):
            found[episode.id] = np.zeros(episode.num_tokens) if advantages is None else advantages[place]
    return found


def _finish(advantages: Mapping[str, Floats], algorithm: AlgorithmConfig, trained: Iterable[str]) -> dict[str, Floats]:
    """Advantages of the trajectories that are trained on, whitened over the step if the estimator asks for it."""
    names = list(trained)
    chosen = [advantages[name] for name in names]
    return dict(zip(names, whiten(chosen) if algorithm.whitens else chosen, strict=True))


def _all_equal(groups: Sequence[Sequence[Episode]]) -> bool:
    outcomes = np.array([episode.outcome for group in groups for episode in group])
    return not has_signal(outcomes)


def _usable(trajectory: Trajectory, algorithm: AlgorithmConfig) -> bool:
    if trajectory.reward is None:
        return False
    if trajectory.failure is not None and trajectory.failure.kind is FailureKind.INFRASTRUCTURE:
        return False
    if not math.isfinite(trajectory.reward):
        raise RewardError(
            f"trajectory {trajectory.id} has the reward {trajectory.reward}, which is not finite; "
            f"score the step again with a reward that returns a number or None"
        )
    inexact = trajectory.metrics.get("inexact_turns")
    if inexact and algorithm.loss.type != "nll":
        raise LearnerError(
            f"trajectory {trajectory.id} cannot be trained on: of {inexact:.0f} of its turns the server gave text, but "
            f"not the sampled token ids with their log-probs; collect it with a backend that gives both"
        )
    return trajectory.num_sampled > 0


def _masks(trajectory: Trajectory, algorithm: AlgorithmConfig) -> list[MaskArray]:
    """For each segment, which of its tokens are trained on."""
    masks = []
    for segment in trajectory.segments:
        if len(segment) and segment.loss_mask[0]:
            raise LearnerError(
                f"trajectory {trajectory.id}: the first token of a segment is marked as sampled, but nothing precedes "
                f"it that could have predicted it; the shard was written by a faulty rollout"
            )
        masks.append(_all_tokens(segment) if algorithm.ablation_train_on_all_tokens else segment.loss_mask)
    return masks


def _repeats(trajectory: Trajectory, seen: set[tuple[str, bytes]]) -> bool:
    """Another trajectory of the same problem sampled the same tokens; remembers those of this one."""
    sampled = b"|".join(segment.token_ids[segment.loss_mask].tobytes() for segment in trajectory.segments)
    key = (trajectory.problem_id, sampled)
    if key in seen:
        return True
    seen.add(key)
    return False


def _samples(trajectory: Trajectory, advantages: Floats, masks: Sequence[MaskArray]) -> list[TrainingSample]:
    samples: list[TrainingSample] = []
    first = 0
    for number, mask in enumerate(masks):
        count = int(mask.sum())
        if count:
            samples.append(_sample(trajectory, number, mask, advantages[first : first + count]))
        first += count
    return samples


def _sample(trajectory: Trajectory, number: int, mask: MaskArray, advantages: Floats) -> TrainingSample:
    segment = trajectory.segments[number]
    return TrainingSample(
        trajectory_id=trajectory.id,
        segment=number,
        token_ids=segment.token_ids,
        loss_mask=mask,
        rollout_logprobs=np.where(segment.loss_mask, segment.logprobs, np.float32(np.nan)),
        advantages=_place(mask, advantages),
        images=segment.images,
        pictures={image.digest: trajectory.pictures[image.digest] for image in segment.images},
    )


def _all_tokens(segment: Segment) -> MaskArray:
    """All but the first, which nothing precedes, and pictures, which no policy writes."""
    mask = np.arange(len(segment)) > 0
    for image in segment.images:
        mask[image.start : image.end] = False
    return mask


def _place(mask: MaskArray, values: Floats) -> npt.NDArray[np.float32]:
    placed = np.zeros(len(mask), np.float32)
    placed[mask] = values
    return placed
