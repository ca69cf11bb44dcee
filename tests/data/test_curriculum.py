"""Draws follow recent success, and are a function of the outcomes before."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from agentfly_lib.configs import CurriculumOrderConfig
from agentfly_lib.data.curriculum import CurriculumState, advance, curriculum_order, weights

CONFIG = CurriculumOrderConfig(recency=0.5, floor=0.1)


def test_recent_success_by_hand() -> None:
    # From 1/2: half of it and half of the mean of 1, 0 and 2 (clipped to 1), 2/3: 7/12. Then with 0: 7/24.
    once = advance(CurriculumState(), {4: [1.0, 0.0, 2.0], 7: []}, CONFIG)
    assert once.rates == {4: pytest.approx(7 / 12)}
    twice = advance(once, {4: [0.0, 0.0]}, CONFIG)
    assert twice.rates == {4: pytest.approx(7 / 24)}
    assert (once.steps, twice.steps) == (1, 2)


def test_a_state_remembers_those_before_it() -> None:
    states = [CurriculumState()]
    for outcome in (1.0, 0.0, 1.0):
        states.append(advance(states[-1], {4: [outcome]}, CONFIG, remember=2))
    assert [state.rates for state in states] == [{}, {4: 0.75}, {4: 0.375}, {4: 0.6875}]
    assert [len(state.earlier) for state in states] == [0, 1, 2, 2]
    for state in states:
        assert state.before(0) is state
        for steps in (1, 2):
            then = state.before(steps)
            assert (then.steps, then.rates) == (max(state.steps - steps, 0), states[max(state.steps - steps, 0)].rates)
    assert states[3].before(1).before(1) == states[3].before(2)
    with pytest.raises(ValueError, match="3 steps ago is not remembered, only the last 2"):
        states[3].before(3)


def test_weights_by_hand() -> None:
    # p = 1/2 (never tried): 1; p = 1: the floor; p = 1/4: 0.1 + 0.9 * 4 * 3/16 = 0.775
    state = CurriculumState(steps=3, rates={1: 1.0, 2: 0.25})
    np.testing.assert_allclose(weights(state, 3, CONFIG), [1.0, 0.1, 0.775])


def test_an_order_has_every_problem_once_and_is_a_function_of_state_step_and_seed() -> None:
    state = CurriculumState(steps=3, rates={1: 1.0})
    order = curriculum_order(state, 50, 3, 0, CONFIG)
    assert sorted(order) == list(range(50))
    assert curriculum_order(state, 50, 3, 0, CONFIG) == order
    assert curriculum_order(state, 50, 4, 0, CONFIG) != order
    assert curriculum_order(state, 50, 3, 1, CONFIG) != order


def test_problems_come_first_as_often_as_they_weigh() -> None:
    # Weights 1, 0.1 and 0.775 of 1.875 in all; over 4,000 draws the standard deviation of a share is below 0.008.
    state = CurriculumState(rates={1: 1.0, 2: 0.25})
    first = Counter(curriculum_order(state, 3, step, 0, CONFIG)[0] for step in range(4000))
    for row, weight in enumerate((1.0, 0.1, 0.775)):
        assert first[row] / 4000 == pytest.approx(weight / 1.875, abs=0.04)
