"""Dealing samples into minibatches, ranks and packed rows."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.training.packing import StepPlan, first_fit_decreasing, plan_step, to_batch
from agentfly_lib.types import TrainingSample


def samples_of(lengths: list[int]) -> list[TrainingSample]:
    """Every third sample is a second segment of the trajectory before it."""
    made = []
    for index, length in enumerate(lengths):
        mask = np.arange(length) > 0
        name = f"t{index - 1 if index % 3 == 2 else index:03d}"
        made.append(
            TrainingSample(
                trajectory_id=name,
                token_ids=np.full(length, index, np.int32),
                loss_mask=mask,
                rollout_logprobs=np.zeros(length, np.float32),
                advantages=np.ones(length, np.float32),
            )
        )
    return made


LENGTHS = st.lists(st.integers(2, 50), max_size=40)


def test_first_fit_decreasing_by_hand() -> None:
    # Longest first: 7 opens bin 0, 6 opens bin 1, 4 joins bin 1 (6 + 4), 3 joins bin 0 (7 + 3), 1 opens bin 2.
    assert first_fit_decreasing([3, 7, 1, 6, 4], 10) == [(1, 0), (3, 4), (2,)]


def test_an_item_larger_than_the_capacity_goes_alone() -> None:
    assert first_fit_decreasing([12, 3], 10) == [(0,), (1,)]


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4))
@settings(deadline=None)
def test_every_sample_is_dealt_once_and_ranks_have_equally_many_microbatches(
    lengths: list[int], minibatches: int, world: int
) -> None:
    samples = samples_of(lengths)
    plan = plan_step(samples, minibatches=minibatches, world=world, microbatch_tokens=60)
    dealt = [index for minibatch in plan.minibatches for index in minibatch.samples]
    assert sorted(dealt) == list(range(len(samples)))
    assert 0.0 <= plan.idle_fraction < 1.0
    for minibatch in plan.minibatches:
        assert len(minibatch.ranks) == world
        assert len({len(rank) for rank in minibatch.ranks}) == 1
        assert minibatch.num_loss_tokens == sum(samples[index].num_loss_tokens for index in minibatch.samples)
        for rank in minibatch.ranks:
            assert all(sum(lengths[index] for index in row) <= 60 for row in rank)
        homes = {samples[index].trajectory_id: set() for index in minibatch.samples}
        for place, rank in enumerate(minibatch.ranks):
            for row in rank:
                for index in row:
                    homes[samples[index].trajectory_id].add(place)
        assert all(len(places) == 1 for places in homes.values())


@given(LENGTHS, st.integers(1, 4), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_minibatches_do_not_depend_on_the_ranks_nor_on_the_order_given(
    lengths: list[int], minibatches: int, shuffler: random.Random
) -> None:
    samples = samples_of(lengths)

    def members(given: list[TrainingSample], world: int) -> list[set[str]]:
        plan = plan_step(given, minibatches=minibatches, world=world, microbatch_tokens=60)
        return [{given[index].trajectory_id for index in minibatch.samples} for minibatch in plan.minibatches]

    shuffled = samples.copy()
    shuffler.shuffle(shuffled)
    assert members(samples, 1) == members(samples, 3) == members(shuffled, 2)


def test_ranks_share_the_cost_and_not_only_the_tokens() -> None:
    """One sequence of 40 costs 40 (1 + 40 / 10) = 200; sixty of 2 cost 144 and have three times its tokens."""
    samples = samples_of([40] + [2] * 60)
    even = plan_step(samples, minibatches=1, world=2, microbatch_tokens=1000)
    by_cost = plan_step(samples, minibatches=1, world=2, microbatch_tokens=1000, attention_tokens=10.0)

    def tokens(plan: StepPlan) -> list[int]:
        (minibatch,) = plan.minibatches
        return [sum(len(samples[index]) for row in rank for index in row) for rank in minibatch.ranks]

    assert tokens(even) == [80, 80]
    assert tokens(by_cost) == [40, 120]


def test_minibatches_are_balanced() -> None:
    plan = plan_step(samples_of([10] * 30), minibatches=4, world=1, microbatch_tokens=100)
    trajectories = [len({index - (index % 3 == 2) for index in part.samples}) for part in plan.minibatches]
    assert trajectories == [5, 5, 5, 5]


def test_a_step_without_samples_has_no_minibatches() -> None:
    plan = plan_step([], minibatches=2, world=2, microbatch_tokens=10)
    assert (plan.minibatches, plan.numbers, plan.idle_fraction) == ((), (), 0.0)


def test_fewer_trajectories_than_ranks_leave_empty_rows() -> None:
    plan = plan_step(samples_of([5]), minibatches=2, world=2, microbatch_tokens=10)
    assert plan.numbers == (0,)
    assert plan.minibatches[0].ranks == (((0,),), ((),))
    assert plan.idle_fraction == 0.5


def test_a_packed_row_by_hand(factories: ModuleType) -> None:
    first, second = samples_of([3, 2])
    batch = to_batch([first, second], [7, 4])
    assert batch.token_ids.tolist() == [0, 0, 0, 1, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert batch.boundaries.tolist() == [0, 3, 5]
    assert batch.loss_mask.tolist() == [False, True, True, False, True]
    assert batch.sample_index.tolist() == [7, 4]
    assert batch.num_loss_tokens == 3


def test_an_empty_row_is_one_token_that_belongs_to_nobody() -> None:
    batch = to_batch([])
    assert (batch.token_ids.tolist(), batch.boundaries.tolist(), batch.num_loss_tokens) == ([0], [0], 0)
    assert not batch.loss_mask.any()
