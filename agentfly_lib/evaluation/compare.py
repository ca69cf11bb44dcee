"""Is one policy better than another? A paired comparison over the problems that both were evaluated on.

Problems differ much more in difficulty than two policies do in skill. The difference is therefore taken per problem,
and the interval is over those differences: far narrower than what two separate intervals would suggest. The test asks
how often differences as large would come about if it were chance which of the two policies a reward belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentfly_lib.evaluation.intervals import Estimate, bootstrap_interval, sign_flip_p_value
from agentfly_lib.evaluation.report import EvaluationReport

__all__ = ["Comparison", "compare"]

_FEWEST_PROBLEMS = 6
"""Even if all n problems moved the same way, the two-sided sign test gives p = 2**(1 - n), above 0.05 for n < 6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Mean reward of `policy_version` minus that of `baseline_version`, over common problems."""

    baseline_version: int
    policy_version: int
    difference: Estimate
    p_value: float
    """Of the paired sign-flip permutation test, two-sided."""

    @property
    def significant(self) -> bool:
        """The 95% interval leaves out 0, and there are problems enough for it to mean anything."""
        estimate = self.difference
        return estimate.problems >= _FEWEST_PROBLEMS and not estimate.low <= 0.0 <= estimate.high


def compare(baseline: EvaluationReport, other: EvaluationReport, *, seed: int = 0) -> Comparison:
    """Compare two evaluations of the same mode, problem by problem (seeded percentile bootstrap of the differences).

    Raises:
        ValueError: the modes or the rewards differ, or no problem has a reward in both.
    """
    for what in ("mode", "reward_name"):
        first, second = getattr(baseline, what), getattr(other, what)
        if first != second:
            raise ValueError(f"evaluations with different {what} cannot be compared: {first!r} and {second!r}")
    common = sorted(baseline.problem_rewards.keys() & other.problem_rewards.keys())
    if not common:
        raise ValueError(
            f"the evaluations of policy versions {baseline.policy_version} and {other.policy_version} have no scored "
            "problem in common; evaluate both on the same held-out split"
        )
    differences = [other.problem_rewards[problem] - baseline.problem_rewards[problem] for problem in common]
    low, high = bootstrap_interval(differences, seed=seed)
    return Comparison(
        baseline_version=baseline.policy_version,
        policy_version=other.policy_version,
        difference=Estimate(mean=sum(differences) / len(common), low=low, high=high, problems=len(common)),
        p_value=sign_flip_p_value(differences, seed=seed),
    )
