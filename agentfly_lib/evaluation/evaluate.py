"""From scored trajectories on held-out problems to a report: mean reward, pass@k, and how the policy behaved.

Only trajectories with a reward count. One that failed or could not be scored is in no numerator and no denominator, and
is counted beside them: an outage must not look like a bad policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from agentfly_lib.evaluation.intervals import mean_interval
from agentfly_lib.evaluation.pass_at_k import pass_at_k_estimate
from agentfly_lib.evaluation.report import EvaluationMode, EvaluationReport
from agentfly_lib.types import Trajectory, TrajectoryGroup

__all__ = ["evaluate_groups", "pass_ks"]

_SOLVED = 1.0
"""A trajectory has solved its problem if its reward is at least this."""


def pass_ks(samples: int) -> tuple[int, ...]:
    """The k that are reported for `samples` samples per problem: 1, 2, 4, ..., and `samples` itself."""
    powers = {1 << exponent for exponent in range(samples.bit_length())}
    return tuple(sorted(k for k in powers | {samples} if k <= samples))


def evaluate_groups(
    groups: Sequence[TrajectoryGroup],
    *,
    policy_version: int,
    mode: EvaluationMode = "sampled",
    reward_name: str,
    samples: int,
    dropped_groups: int = 0,
    seed: int = 0,
) -> EvaluationReport:
    """Summarise one evaluation.

    Args:
        groups: rewards joined; the order decides nothing. Groups of the same problem count as one problem.
        samples: trajectories asked per problem.
        dropped_groups: problems asked for that have no group, because they were not finished in time.
        seed: of the bootstrap.
    """
    rewards: dict[str, list[float]] = {}
    for group in sorted(groups, key=lambda group: (group.problem.id, group.id)):
        rewards.setdefault(group.problem.id, []).extend(_rewards(group))
    means = {problem: fmean(values) for problem, values in rewards.items() if values}
    counts = [(len(values), sum(value >= _SOLVED for value in values)) for values in rewards.values()]
    estimates = {k: pass_at_k_estimate(counts, k, seed=seed) for k in pass_ks(samples)}
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    usable = [trajectory for trajectory in trajectories if _reward(trajectory) is not None]
    failed = sum(trajectory.failure is not None for trajectory in trajectories)
    truncated = sum(trajectory.stop.truncated for trajectory in usable)
    return EvaluationReport(
        policy_version=policy_version,
        mode=mode,
        reward_name=reward_name,
        problems=len(groups) + dropped_groups,
        samples=samples,
        reward=mean_interval(list(means.values()), seed=seed) if means else None,
        pass_at={k: estimate for k, estimate in estimates.items() if estimate is not None},
        scored=len(usable) - truncated,
        truncated=truncated,
        failed=failed,
        dropped=len(trajectories) - len(usable) - failed + dropped_groups * samples,
        behaviour=_behaviour(usable),
        problem_rewards=means,
    )


def _reward(trajectory: Trajectory) -> float | None:
    return None if trajectory.failure is not None else trajectory.reward


def _rewards(group: TrajectoryGroup) -> list[float]:
    return [reward for trajectory in group.trajectories if (reward := _reward(trajectory)) is not None]


def _behaviour(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    if not trajectories:
        return {}
    return {
        "turns": fmean(trajectory.num_turns for trajectory in trajectories),
        "sampled_tokens": fmean(trajectory.num_sampled for trajectory in trajectories),
        "tool_calls": fmean(trajectory.metrics.get("tool_calls", 0.0) for trajectory in trajectories),
        "tool_errors": fmean(trajectory.metrics.get("tool_errors", 0.0) for trajectory in trajectories),
    }
