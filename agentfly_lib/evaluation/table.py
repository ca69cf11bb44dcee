"""The table of a run's evaluations: one row per policy version, the starting policy first, as the baseline."""

from __future__ import annotations

from collections.abc import Iterable

from agentfly_lib.evaluation.compare import compare
from agentfly_lib.evaluation.intervals import Estimate
from agentfly_lib.evaluation.report import EvaluationReport

__all__ = ["report_table"]

_MISSING = "-"


def report_table(reports: Iterable[EvaluationReport]) -> list[dict[str, str]]:
    """Rows of text with the same columns in the same order, ready for a terminal table or a page.

    Sampled and greedy evaluations of one policy version share a row. The oldest version is the baseline; `gain` is the
    paired difference to it (sampled mode, greedy if there is no sampled one), with `*` where it is significant.
    If a version and mode was evaluated twice, the later one in `reports` stands.
    """
    by_version: dict[int, dict[str, EvaluationReport]] = {}
    for report in reports:
        by_version.setdefault(report.policy_version, {})[report.mode] = report
    versions = sorted(by_version)
    ks = sorted({k for modes in by_version.values() if "sampled" in modes for k in modes["sampled"].pass_at})
    return [_row(by_version[version], by_version[versions[0]], ks, version) for version in versions]


def _row(
    modes: dict[str, EvaluationReport], baseline: dict[str, EvaluationReport], ks: list[int], version: int
) -> dict[str, str]:
    sampled, greedy = modes.get("sampled"), modes.get("greedy")
    main = sampled or greedy
    assert main is not None  # a version is in the table because of one of them
    return {
        "policy": f"{version} (baseline)" if modes is baseline else str(version),
        "reward": _text(sampled and sampled.reward),
        "gain": _MISSING if modes is baseline else _gain(baseline.get(main.mode), main),
        "greedy": _text(greedy and greedy.reward),
        **{f"pass@{k}": _text(sampled and sampled.pass_at.get(k)) for k in ks},
        "problems": str(main.problems),
        "unscored": str(sum(report.failed + report.dropped for report in modes.values())),
    }


def _text(estimate: Estimate | None) -> str:
    return _MISSING if estimate is None else str(estimate)


def _gain(baseline: EvaluationReport | None, report: EvaluationReport) -> str:
    if baseline is None or not baseline.problem_rewards.keys() & report.problem_rewards.keys():
        return _MISSING
    comparison = compare(baseline, report)
    difference = comparison.difference
    mark = " *" if comparison.significant else ""
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]{mark}"
