"""What one evaluation found: the value in `report.json`, how it gets there and back, and the metrics made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agentfly_lib.evaluation.intervals import Estimate
from agentfly_lib.store.atomic import read_model, write_model

__all__ = ["EvaluationMode", "EvaluationReport", "read_report", "write_report"]

EvaluationMode = Literal["sampled", "greedy"]
"""How held-out problems are tried: several times as in training, or once by the most probable tokens."""


class EvaluationReport(BaseModel):
    """One evaluation of one policy version, in one mode."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    version: Literal[1] = 1
    """Version of this file's format."""
    policy_version: int
    mode: EvaluationMode
    reward_name: str
    problems: int
    """Groups asked for, whether or not any of their trajectories could be scored."""
    samples: int
    """Trajectories per problem."""
    reward: Estimate | None
    """Mean reward over problems; None if no trajectory could be scored."""
    pass_at: dict[int, Estimate]
    """pass@k by k."""
    scored: int
    """Trajectories with a reward that the agent ended itself."""
    truncated: int
    """Trajectories with a reward that a limit cut."""
    failed: int
    """Trajectories that broke; they are in no mean."""
    dropped: int
    """Trajectories that could not be scored or were not finished in time; they are in no mean."""
    behaviour: dict[str, float]
    """Means over the trajectories with a reward: `turns`, `sampled_tokens`, `tool_calls`, `tool_errors`."""
    problem_rewards: dict[str, float]
    """Mean reward of each problem that has one, by problem id: what two evaluations are compared on."""

    @property
    def metrics(self) -> dict[str, float]:
        """Finite numbers named `eval/<what>/<statistic>`; the greedy mode's mean reward is `eval/greedy/mean`."""
        prefix = "eval" if self.mode == "sampled" else "eval/greedy"
        values: dict[str, float] = {}
        if self.reward is not None:
            values |= _named("eval/reward" if self.mode == "sampled" else "eval/greedy", self.reward)
        if self.mode == "sampled":
            for k, estimate in self.pass_at.items():
                values |= _named(f"eval/pass_at_{k}", estimate)
        values |= {f"{prefix}/{name}/mean": value for name, value in self.behaviour.items()}
        total = self.scored + self.truncated + self.failed + self.dropped
        values |= {
            f"{prefix}/problems/count": float(self.problems),
            f"{prefix}/failed/count": float(self.failed),
            f"{prefix}/dropped/count": float(self.dropped),
            f"{prefix}/truncated/fraction": self.truncated / max(total, 1),
        }
        return {name: value for name, value in values.items() if math.isfinite(value)}


def write_report(path: Path, report: EvaluationReport) -> None:
    """Write `report.json`, whole or not at all. Raises `ShardError` if the file system refuses."""
    write_model(path, report)


def read_report(path: Path) -> EvaluationReport:
    """Read `report.json`. Raises `ShardError` naming the file if it is missing, damaged or of another version."""
    return read_model(path, EvaluationReport, remedy="use the release that wrote it, or remove it to evaluate again")


def _named(name: str, estimate: Estimate) -> Mapping[str, float]:
    return {f"{name}/mean": estimate.mean, f"{name}/ci_low": estimate.low, f"{name}/ci_high": estimate.high}
