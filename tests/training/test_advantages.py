"""Advantages within a group, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentfly_lib.training.advantages import grpo, has_signal

REWARDS = hnp.arrays(np.float64, st.integers(2, 16), elements=st.floats(-10, 10))


def test_two_right_and_two_wrong() -> None:
    # mean 1/2; sample variance 4 * (1/2)^2 / 3 = 1/3, std 0.5773503; A = +-0.5 / (0.5773503 + 1e-6) = +-0.8660239
    np.testing.assert_allclose(
        grpo(np.array([1.0, 0.0, 0.0, 1.0])), [0.8660239, -0.8660239, -0.8660239, 0.8660239], atol=1e-7
    )


def test_one_right_of_four() -> None:
    # mean 1/4; sample variance (9/16 + 3/16) / 3 = 1/4, std 1/2; A = 0.75 / 0.500001 and -0.25 / 0.500001
    np.testing.assert_allclose(grpo(np.array([0.0, 1.0, 0.0, 0.0])), [-0.499999, 1.499997, -0.499999, -0.499999])


def test_a_group_of_one_has_no_advantage() -> None:
    assert grpo(np.array([5.0])).tolist() == [0.0]
    assert grpo(np.array([])).tolist() == []


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [([], False), ([1.0], False), ([0.3, 0.3], False), ([0.3, 0.3 + 5e-9], False), ([0.3, 0.3 + 2e-8], True)],
)
def test_equal_rewards_carry_no_signal(rewards: list[float], signal: bool) -> None:
    assert has_signal(np.array(rewards)) is signal


@given(REWARDS, st.floats(-5, 5))
def test_advantages_do_not_depend_on_the_level_and_sum_to_zero(rewards: np.ndarray, shift: float) -> None:
    advantages = grpo(rewards)
    assert abs(advantages.sum()) < 1e-6
    if rewards.std() > 1e-3:
        np.testing.assert_allclose(grpo(rewards + shift), advantages, atol=1e-6)
