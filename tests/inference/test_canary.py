"""The canary tells right weights from wrong ones, from unchanged ones, and from a stale prefix cache."""

import math

import pytest

from agentfly_lib.errors import CanaryError
from agentfly_lib.inference.canary import CanaryReading, judge_canary, judge_reading
from agentfly_lib.types import Canary

CANARY = Canary(token_ids=(5, 6, 7, 8), logprobs=(-1.0, -2.0, -3.0))


def judge(before, after, *, cached=0, tolerance=0.01):
    return judge_canary(
        CANARY,
        before=CanaryReading(logprobs=before, cached_tokens=0),
        after=CanaryReading(logprobs=after, cached_tokens=cached),
        tolerance=tolerance,
        version=4,
    )


def test_equal_log_probs_pass_and_the_report_holds_the_distances():
    report = judge([-1.5, -2.5, -3.0], [-1.0, -2.003, -3.0])
    assert report.mean_difference == pytest.approx(0.001)
    assert report.max_difference == pytest.approx(0.003)
    assert report.mean_difference_before == pytest.approx(1 / 3)


def test_a_mean_difference_above_the_tolerance_fails_with_the_figures():
    with pytest.raises(CanaryError, match=r"does not serve .* version 4: mean difference 0.1, largest 0.3"):
        judge([-9.0, -9.0, -9.0], [-1.0, -2.3, -3.0])


def test_one_bad_token_may_not_hide_as_nan():
    with pytest.raises(CanaryError, match="mean difference nan"):
        judge([-9.0, -9.0, -9.0], [-1.0, math.nan, -3.0])


def test_an_engine_that_did_not_change_fails_even_within_the_tolerance():
    stale = [-1.005, -2.005, -3.005]  # off by half the tolerance: the learner moved, the engine did not
    with pytest.raises(CanaryError, match="same weights as before"):
        judge(stale, stale)


def test_the_same_weights_loaded_again_pass():
    again = [-1.0, -2.0000001, -3.0]
    assert judge(again, again).mean_difference < 1e-6


def test_a_prompt_found_in_the_cache_after_the_update_fails():
    with pytest.raises(CanaryError, match="prefix cache of the old weights for 2 of 4"):
        judge([-9.0, -9.0, -9.0], [math.nan, math.nan, -3.0], cached=2)


def test_an_engine_that_was_found_is_judged_without_an_update():
    assert judge_reading(CANARY, [-1.0, -2.003, -3.0], tolerance=0.01, version=4) == pytest.approx(0.001)
    with pytest.raises(CanaryError, match=r"found does not serve .* version 4: mean difference 0.1, largest 0.3"):
        judge_reading(CANARY, [-1.0, -2.3, -3.0], tolerance=0.01, version=4)
    with pytest.raises(CanaryError, match="mean difference nan"):
        judge_reading(CANARY, [-1.0, math.nan, -3.0], tolerance=0.01, version=4)


@pytest.mark.parametrize(("tokens", "logprobs"), [((1,), ()), ((1, 2), (-1.0, -1.0)), ((1, 2, 3), (-1.0,))])
def test_a_canary_needs_one_log_prob_per_token_but_the_first(tokens, logprobs):
    with pytest.raises(ValueError, match="T - 1 log-probs"):
        Canary(token_ids=tokens, logprobs=logprobs)
