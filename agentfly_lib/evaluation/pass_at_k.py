"""pass@k: the chance that at least one of k samples solves a problem, estimated without bias from n >= k samples.

Chen et al., arXiv 2107.03374, eq. 1: per problem 1 - C(n - c, k) / C(n, k), with c of n samples correct; then the mean
over problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from agentfly_lib.evaluation.intervals import Estimate, mean_interval

__all__ = ["pass_at_k", "pass_at_k_estimate"]


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate for one problem, of which `correct` of `samples` samples are right.

    Raises:
        ValueError: k is not in [1, samples], or `correct` not in [0, samples].
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples of the problem and k >= 1, there are {samples}")
    if not 0 <= correct <= samples:
        raise ValueError(f"{correct} of {samples} samples cannot be correct")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def pass_at_k_estimate(counts: Sequence[tuple[int, int]], k: int, *, seed: int = 0) -> Estimate | None:
    """Mean pass@k over problems with its 95% interval; `counts` holds (samples, correct) of each problem.

    A problem with fewer than k samples (some could not be scored) says nothing about pass@k and is left out;
    `Estimate.problems` says how many remained. None if none did.
    """
    values = [pass_at_k(samples, correct, k) for samples, correct in counts if samples >= k]
    return mean_interval(values, seed=seed) if values else None
