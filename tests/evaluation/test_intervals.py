"""Intervals against a table in print, SciPy, and their promised coverage."""

import math

import numpy as np
import pytest

from agentfly_lib.evaluation import bootstrap_interval, mean_interval, wilson_interval
from agentfly_lib.evaluation.intervals import sign_flip_p_value


def test_wilson_by_hand():
    # z = 1.96, 8 of 10: centre (0.8 + 0.19208) / 1.38416 = 0.71674,
    # half width 1.96 / 1.38416 * sqrt(0.016 + 0.009604) = 0.22658
    assert wilson_interval(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-4)


def test_wilson_at_nothing_and_at_all_is_not_of_width_zero():
    z2 = 1.959964**2  # the upper limit for 0 of n is z^2 / (n + z^2)
    assert wilson_interval(0, 20) == pytest.approx((0.0, z2 / (20 + z2)), abs=1e-6)
    assert wilson_interval(20, 20) == pytest.approx((20 / (20 + z2), 1.0), abs=1e-6)


@pytest.mark.parametrize(("successes", "count"), [(0, 7), (3, 7), (7, 7), (60, 128), (1, 1000)])
def test_wilson_equals_scipy(successes, count):
    stats = pytest.importorskip("scipy.stats", reason="SciPy is the oracle")
    oracle = stats.binomtest(successes, count).proportion_ci(method="wilson")
    assert wilson_interval(successes, count) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_bootstrap_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats", reason="SciPy is the oracle")
    values = np.random.default_rng(5).choice([0.0, 0.25, 0.5, 1.0], size=128)
    oracle = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=7).confidence_interval
    assert bootstrap_interval(values) == pytest.approx((oracle.low, oracle.high), abs=5e-3)


def test_bootstrap_is_near_the_normal_interval_for_many_values():
    values = np.random.default_rng(1).uniform(size=1000)
    half = 1.96 * values.std(ddof=1) / math.sqrt(1000)
    assert bootstrap_interval(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=2e-3)


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(2).uniform(size=30)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)


def test_many_problems_are_resampled_in_chunks_that_fit():
    low, high = bootstrap_interval(np.linspace(0, 1, 5000))
    assert low < 0.5 < high
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(12 * 5000), rel=0.05)


def test_rewards_of_zero_and_one_are_a_proportion():
    estimate = mean_interval([1.0] * 8 + [0.0] * 2)
    assert (estimate.mean, estimate.problems) == (0.8, 10)
    assert (estimate.low, estimate.high) == wilson_interval(8, 10)


def test_about_95_of_100_intervals_hold_the_true_mean():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        ability = rng.beta(2, 2, size=64)  # one chance of success per problem, true mean 1/2
        estimate = mean_interval(rng.binomial(4, ability) / 4)
        inside += estimate.low <= 0.5 <= estimate.high
    assert 0.90 <= inside / 200 <= 0.99


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_value_and_values_that_are_not_finite_are_refused(values):
    with pytest.raises(ValueError, match=r"at least one problem|not a finite number"):
        mean_interval(values)


def test_an_impossible_proportion_is_refused():
    with pytest.raises(ValueError, match="3 of 2"):
        wilson_interval(3, 2)


class TestSignFlips:
    def test_by_hand(self):
        # three differences of one sign: 2 of the 8 assignments are as extreme
        assert sign_flip_p_value([0.5, 0.25, 1.0]) == 2 / 8
        # sums of +-1 +-2: 3, 1, -1, -3; two are at least 1 - and all are at least |1|
        assert sign_flip_p_value([-1.0, 2.0]) == 1.0
        assert sign_flip_p_value([0.0, 0.0]) == 1.0
        assert sign_flip_p_value([0.5, 0.25, 1.0, 0.0]) == 2 / 8  # no difference, no evidence

    @pytest.mark.parametrize("count", [5, 9, 12])
    def test_exact_ones_are_scipy_s(self, count):
        stats = pytest.importorskip("scipy.stats")
        values = np.random.default_rng(count).normal(0.3, 1, count)
        reference = stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True, axis=-1
        )
        assert sign_flip_p_value(values) == pytest.approx(reference.pvalue, abs=1e-12)

    def test_drawn_ones_are_close_to_scipy_s_t_test_where_that_holds(self):
        stats = pytest.importorskip("scipy.stats")
        values = np.random.default_rng(3).normal(0.15, 1, 200)
        assert sign_flip_p_value(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.01)
        assert sign_flip_p_value(np.ones(100)) == pytest.approx(1 / 10_001)  # never 0

    @pytest.mark.parametrize("values", [[], [math.nan]])
    def test_refusals(self, values):
        with pytest.raises(ValueError, match="value"):
            sign_flip_p_value(values)
