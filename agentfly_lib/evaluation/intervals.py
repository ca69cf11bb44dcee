"""95% intervals over problems: how far a mean over held-out problems may lie from the mean over all such problems.

The unit is the problem. Samples of one problem are alike, so counting each of them as an independent draw would give
intervals that are too narrow; every function here takes one value per problem (the mean over its samples, or pass@k).

Two methods. Values that are all 0 or 1 are a proportion: Wilson's score interval, which stays honest at 0 of n and at
n of n. Anything else: percentile bootstrap over problems, which assumes no shape, never leaves the range of the values,
and is seeded, so that the same files give the same report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

__all__ = ["CONFIDENCE", "Estimate", "bootstrap_interval", "mean_interval", "sign_flip_p_value", "wilson_interval"]

CONFIDENCE = 0.95
_RESAMPLES = 10_000
_EXACT = 14
"""Differences up to which all 2**n signs are tried."""
_CHUNK = 1 << 22  # resampled values held at the same time (32 MiB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over problems with its interval."""

    mean: float
    low: float
    high: float
    problems: int
    """Problems that the mean is over."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson_interval(successes: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927, eq. for the inverted score test, without continuity correction).

    Raises:
        ValueError: `count` is not positive, or `successes` is not in [0, count].
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"a proportion needs 0 <= successes <= count and count >= 1, not {successes} of {count}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    proportion, weight = successes / count, z * z / count
    centre = (proportion + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(proportion * (1 - proportion) / count + weight / (4 * count))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == count else min(1.0, centre + half)
    return low, high


def bootstrap_interval(
    values: Sequence[float] | npt.NDArray[np.float64], *, seed: int = 0, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Percentile bootstrap of the mean over `values` [problems] (Efron 1979), 10,000 resamples, seeded.

    Values that are all equal give an interval of width 0.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    data = _finite(values)
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK // len(data))
    means = np.concatenate(
        [
            data[rng.integers(0, len(data), size=(min(rows, _RESAMPLES - done), len(data)))].mean(axis=1)
            for done in range(0, _RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)


def mean_interval(values: Sequence[float] | npt.NDArray[np.float64], *, seed: int = 0) -> Estimate:
    """Mean over `values` [problems] with its 95% interval, by the method that fits them (see the module).

    Raises:
        ValueError: no values, or one that is not finite.
    """
    data = _finite(values)
    if np.isin(data, (0.0, 1.0)).all():
        low, high = wilson_interval(int(data.sum()), len(data))
    else:
        low, high = bootstrap_interval(data, seed=seed)
    return Estimate(mean=float(data.mean()), low=low, high=high, problems=len(data))


def sign_flip_p_value(differences: Sequence[float] | npt.NDArray[np.float64], *, seed: int = 0) -> float:
    """Two-sided p-value of a mean paired difference [problems]: how likely one at least as large is if each difference
    had its sign by chance (Fisher's randomisation test, 1935).

    Differences of 0 say nothing and are left out. Exact over all signs for up to 14 of the others, else over 10,000
    seeded draws, of which the observed one counts as one (Phipson and Smyth 2010, 1603.05766), so that it is never 0.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    data = _finite(differences)
    data = data[data != 0]
    count = len(data)
    if not count:
        return 1.0
    if count <= _EXACT:
        bits = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
        sums = (1 - 2 * bits) @ data
    else:
        rng = np.random.default_rng(seed)
        rows = max(1, _CHUNK // count)
        sums = np.concatenate(
            [
                rng.choice((-1.0, 1.0), size=(min(rows, _RESAMPLES - done), count)) @ data
                for done in range(0, _RESAMPLES, rows)
            ]
        )
    limit = abs(data.sum()) * (1 - 1e-12)  # equal sums differ by rounding
    extreme = int((np.abs(sums) >= limit).sum())
    return extreme / len(sums) if count <= _EXACT else (extreme + 1) / (len(sums) + 1)


def _finite(values: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        raise ValueError("a mean needs the value of at least one problem")
    if not np.isfinite(data).all():
        raise ValueError(f"value {int(np.argmin(np.isfinite(data)))} of {data.size} is not a finite number")
    return data
