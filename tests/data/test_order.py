"""Steps go through the training problems epoch by epoch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.data import problems_of_step
from agentfly_lib.data.order import step_order


@given(num_train=st.integers(1, 40), per_step=st.integers(1, 25), epochs=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_every_epoch_has_every_problem_once(num_train, per_step, epochs, seed):
    stream: list[int] = []
    for step in range(-(-num_train * epochs // per_step)):
        of_step = problems_of_step(num_train, per_step, step, seed)
        assert len(of_step) == per_step
        stream += of_step
    for epoch in range(epochs):
        assert Counter(stream[epoch * num_train : (epoch + 1) * num_train]) == Counter(range(num_train))


def test_a_step_does_not_depend_on_the_steps_before():
    steps = [problems_of_step(10, 4, step, 7) for step in range(20)]
    assert problems_of_step(10, 4, 13, 7) == steps[13]
    # Step 2 takes the last two problems of epoch 0 and the first two of epoch 1.
    epoch_0 = steps[0] + steps[1] + steps[2][:2]
    assert sorted(epoch_0) == list(range(10))
    assert sorted(steps[2][2:] + steps[3] + steps[4]) == list(range(10))


def test_epochs_and_seeds_have_orders_of_their_own():
    first, second = problems_of_step(30, 30, 0, 0), problems_of_step(30, 30, 1, 0)
    assert first != second
    assert first != problems_of_step(30, 30, 0, 1)


def test_nothing_to_take_from():
    with pytest.raises(ValueError, match="no problems for step 0: 0 training problems"):
        problems_of_step(0, 4, 0, 0)


def test_what_a_step_may_ask_for_begins_with_its_own_problems_and_has_all_others_once():
    order = step_order(10, 4, 3, 7)
    assert order[:4] == problems_of_step(10, 4, 3, 7)
    assert len(order) == len(set(order)) == 10
    assert step_order(10, 4, 3, 7) == order
    assert step_order(10, 4, 3, 8) != order
