"""pass@k against values counted by hand and against counting every subset."""

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.evaluation import pass_at_k, pass_at_k_estimate


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [
        (4, 0, 1, 0),
        (4, 1, 1, Fraction(1, 4)),
        (4, 1, 2, Fraction(1, 2)),  # 3 of the 6 pairs hold the right one
        (4, 2, 2, Fraction(5, 6)),  # only one pair holds two wrong ones
        (4, 2, 3, 1),  # three samples cannot avoid two right ones of four
        (5, 2, 2, Fraction(7, 10)),
        (10, 3, 5, Fraction(11, 12)),  # 1 - C(7,5)/C(10,5) = 1 - 21/252
        (4, 4, 4, 1),
    ],
)
def test_values_counted_by_hand(samples, correct, k, expected):
    assert pass_at_k(samples, correct, k) == pytest.approx(float(expected), abs=1e-15)


@settings(deadline=None)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_equals_the_share_of_subsets_with_a_right_sample(case):
    samples, correct, k = case
    subsets = list(combinations([True] * correct + [False] * (samples - correct), k))
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_large_counts_stay_exact():
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(("samples", "correct", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_impossible_counts_are_refused(samples, correct, k):
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(samples, correct, k)


def test_the_estimate_is_the_mean_over_problems():
    estimate = pass_at_k_estimate([(4, 1), (4, 0), (4, 4), (4, 2)], 2)
    assert estimate is not None
    assert estimate.mean == pytest.approx((1 / 2 + 0 + 1 + 5 / 6) / 4)
    assert estimate.low <= estimate.mean <= estimate.high


def test_a_problem_with_too_few_samples_is_left_out_and_the_count_says_so():
    estimate = pass_at_k_estimate([(4, 4), (1, 0)], 2)
    assert estimate is not None
    assert (estimate.mean, estimate.problems) == (1.0, 1)
    assert pass_at_k_estimate([(1, 1)], 2) is None
