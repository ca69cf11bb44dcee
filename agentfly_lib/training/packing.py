"""Who computes what: samples are dealt into minibatches, ranks and packed micro-batches.

Three deals, each a pure function of the samples alone, so that every rank finds the same plan without talking:

1. Trajectories into minibatches (one optimizer update each), longest first in a snake order, which balances both their
   number and their tokens. It does not depend on the number of ranks, so the updates are the same on any number.
2. The trajectories of a minibatch onto ranks: costliest first, each to the rank with the least to do. What a sample
   costs grows with its tokens, and, by attention, with their square.
3. The samples of a rank into micro-batches of at most `microbatch_tokens`, first-fit decreasing.

All segments of a trajectory stay together up to step 3. Every rank gets the same number of micro-batches, padded with
empty ones, because ranks meet in collective operations during each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentfly_lib.types import Batch, TrainingSample

__all__ = ["Minibatch", "StepPlan", "first_fit_decreasing", "plan_step", "to_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """One optimizer update: for every rank, its micro-batches as indices into the step's samples."""

    ranks: tuple[tuple[tuple[int, ...], ...], ...]  # [world][micro-batches][samples]
    num_loss_tokens: int
    """Over all ranks: the denominator of the loss."""

    @property
    def samples(self) -> list[int]:
        return [index for rank in self.ranks for microbatch in rank for index in microbatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The step's minibatches. Those without a sample are absent; `numbers` tells which ones these are."""

    minibatches: tuple[Minibatch, ...]
    numbers: tuple[int, ...]
    """Position of each minibatch among the configured ones."""
    idle_fraction: float
    """Share of token slots without work: what ranks wait for the longest one, micro-batch by micro-batch."""


def plan_step(
    samples: Sequence[TrainingSample],
    *,
    minibatches: int,
    world: int,
    microbatch_tokens: int,
    attention_tokens: float = math.inf,
) -> StepPlan:
    """Deals the step's samples; deterministic, independent of the order in which trajectories are given.

    attention_tokens: length at which a token costs as much in attention as in all else.
    """
    by_trajectory: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        by_trajectory.setdefault(sample.trajectory_id, []).append(index)
    tokens = {name: sum(len(samples[index]) for index in indices) for name, indices in by_trajectory.items()}
    cost = {
        name: sum(len(samples[index]) * (1 + len(samples[index]) / attention_tokens) for index in indices)
        for name, indices in by_trajectory.items()
    }
    longest_first = sorted(by_trajectory, key=lambda name: (-tokens[name], name))

    dealt: list[list[str]] = [[] for _ in range(minibatches)]
    for position, name in enumerate(longest_first):
        turn, seat = divmod(position, minibatches)
        dealt[seat if turn % 2 == 0 else minibatches - 1 - seat].append(name)

    planned: list[Minibatch] = []
    numbers: list[int] = []
    busy = slots = 0
    for number, names in enumerate(dealt):
        if not names:
            continue
        loads = [0.0] * world
        hands: list[list[int]] = [[] for _ in range(world)]
        for name in sorted(names, key=lambda name: (-cost[name], name)):
            rank = loads.index(min(loads))
            loads[rank] += cost[name]
            hands[rank] += by_trajectory[name]
        packed = [
            first_fit_decreasing([len(samples[index]) for index in hand], microbatch_tokens, hand) for hand in hands
        ]
        depth = max(len(microbatches) for microbatches in packed)
        ranks = tuple(tuple(microbatches) + ((),) * (depth - len(microbatches)) for microbatches in packed)
        planned.append(
            Minibatch(
                ranks=ranks,
                num_loss_tokens=sum(samples[index].num_loss_tokens for name in names for index in by_trajectory[name]),
            )
        )
        numbers.append(number)
        busy += sum(tokens[name] for name in names)
        for place in range(depth):
            slots += world * max(sum(len(samples[index]) for index in rank[place]) for rank in ranks)
    return StepPlan(
        minibatches=tuple(planned),
        numbers=tuple(numbers),
        idle_fraction=1.0 - busy / slots if slots else 0.0,
    )


def first_fit_decreasing(
    lengths: Sequence[int], capacity: int, labels: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Puts items into as few bins of `capacity` as first-fit decreasing finds; an item that is larger gets its own bin.

    Returns the labels (positions if none are given) of each bin.
    """
    names = range(len(lengths)) if labels is None else labels
    bins: list[list[int]] = []
    room: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda item: (-lengths[item], names[item])):
        length = lengths[position]
        for index, free in enumerate(room):
            if length <= free:
                bins[index].append(names[position])
                room[index] -= length
                break
        else:
            bins.append([names[position]])
            room.append(capacity - length)
    return [tuple(items) for items in bins]


def to_batch(samples: Sequence[TrainingSample], indices: Sequence[int] | None = None) -> Batch:
    """Lays samples end to end. Without any it is one padding token that belongs to no sample and is not trained on.

    `indices` are the samples' positions in the step, recorded as `sample_index`.
    """
    if not samples:
        return Batch(
            token_ids=np.zeros(1, np.int64),
            position_ids=np.zeros(1, np.int64),
            boundaries=np.zeros(1, np.int32),
            loss_mask=np.zeros(1, np.bool_),
            rollout_logprobs=np.full(1, np.nan, np.float32),
            advantages=np.zeros(1, np.float32),
            sample_index=np.zeros(0, np.int32),
            num_loss_tokens=0,
        )
    lengths = np.array([len(sample) for sample in samples])
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    return Batch(
        token_ids=np.concatenate([sample.token_ids for sample in samples]).astype(np.int64),
        position_ids=np.arange(boundaries[-1]) - np.repeat(boundaries[:-1], lengths),
        boundaries=boundaries.astype(np.int32),
        loss_mask=np.concatenate([sample.loss_mask for sample in samples]),
        rollout_logprobs=np.concatenate([sample.rollout_logprobs for sample in samples]),
        advantages=np.concatenate([sample.advantages for sample in samples]),
        sample_index=np.asarray(range(len(samples)) if indices is None else indices, dtype=np.int32),
        num_loss_tokens=sum(sample.num_loss_tokens for sample in samples),
        images=tuple(
            replace(image, start=image.start + int(first), end=image.end + int(first))
            for sample, first in zip(samples, boundaries[:-1], strict=True)
            for image in sample.images
        ),
        pictures={digest: picture for sample in samples for digest, picture in sample.pictures.items()},
    )
