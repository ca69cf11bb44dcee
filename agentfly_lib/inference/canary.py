"""The proof that an engine serves the weights it was given: log-probs of fixed tokens, compared with the learner's.

Log-probs are compared, not parameters: a kernel may keep a packed copy of an old weight whose parameter looks new. The
same request is made before and after the update, and may read the prefix cache, so that keys and values of the old
weights, had they survived, would be found and used by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentfly_lib.errors import CanaryError
from agentfly_lib.types import Canary

__all__ = ["CanaryReading", "CanaryReport", "judge_canary", "judge_reading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReading:
    """What the engine says of the canary's tokens."""

    logprobs: list[float]  # [T - 1]  meaningless where `cached_tokens` covers the position
    cached_tokens: int
    """Leading tokens whose keys and values came from the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReport:
    """How far the engine is from the learner, in nats per token."""

    mean_difference: float
    max_difference: float
    mean_difference_before: float
    """The same under the weights served before the update, over the tokens that the cache did not cover."""


def judge_canary(
    canary: Canary, *, before: CanaryReading, after: CanaryReading, tolerance: float, version: int
) -> CanaryReport:
    """Compare the engine with the learner after an update to `version`.

    Raises:
        CanaryError: the engine read cached keys and values of the old weights, its log-probs did not change at all
            although the learner's did, or they are further from the learner's than `tolerance` on average.
    """
    if after.cached_tokens:
        raise CanaryError(
            f"after the update to version {version} the engine still used its prefix cache of the old weights for "
            f"{after.cached_tokens} of {len(canary.token_ids)} canary tokens; the cache must be reset with every update"
        )
    expected = np.asarray(canary.logprobs)
    difference = np.abs(np.asarray(after.logprobs) - expected)
    fresh = slice(before.cached_tokens, None)  # entries whose position was computed, not read from the cache
    old, new = np.asarray(before.logprobs)[fresh], np.asarray(after.logprobs)[fresh]
    report = CanaryReport(
        mean_difference=float(difference.mean()),
        max_difference=float(difference.max()),
        mean_difference_before=float(np.abs(old - expected[fresh]).mean()) if old.size else math.nan,
    )
    figures = (
        f"mean difference {report.mean_difference:.3g}, largest {report.max_difference:.3g}, before the update "
        f"{report.mean_difference_before:.3g}, tolerance {tolerance:.3g} nats per token"
    )
    if np.array_equal(old, new) and report.mean_difference_before > tolerance / 10:
        raise CanaryError(f"the engine serves the same weights as before the update to version {version}: {figures}")
    if not report.mean_difference <= tolerance:  # written so that NaN fails
        raise CanaryError(
            f"the engine does not serve the learner's weights of version {version}: {figures}; bfloat16 and float16 "
            "need a larger inference.canary_tolerance, about 0.1"
        )
    return report


def judge_reading(canary: Canary, logprobs: Sequence[float], *, tolerance: float, version: int) -> float:
    """Mean difference of an engine's log-probs [T - 1] from the learner's, both said to be of `version`.

    Raises `CanaryError` if it is more than `tolerance`, or not a number.
    """
    difference = np.abs(np.asarray(logprobs) - np.asarray(canary.logprobs))
    mean = float(difference.mean())
    if not mean <= tolerance:  # written so that NaN fails
        raise CanaryError(
            f"the engine that was found does not serve the learner's weights of version {version}: mean difference "
            f"{mean:.3g}, largest {float(difference.max()):.3g}, tolerance {tolerance:.3g} nats per token; load the "
            "learner's weights into it"
        )
    return mean
