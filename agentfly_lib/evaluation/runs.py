"""Finished and unfinished runs as they lie on disk, and several of them held against each other.

Everything is read from the run directories: the resolved config, each step's metrics, each evaluation's report. Runs
that were evaluated on the same held-out problems are compared pair by pair over those problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentfly_lib.configs import RunConfig
from agentfly_lib.configs.load import flatten_config
from agentfly_lib.errors import AgentFlyError, ShardError, UserError
from agentfly_lib.evaluation.compare import Comparison, compare
from agentfly_lib.evaluation.report import EvaluationReport, read_report
from agentfly_lib.store.atomic import read_json
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.layout_version import check_layout
from agentfly_lib.store.recorded import recorded_config

__all__ = ["Progress", "RunComparison", "RunSummary", "compare_runs", "find_runs", "read_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a version of the policy had cost when it was evaluated, and what it was worth."""

    version: int
    report: EvaluationReport
    tokens: int
    """Sampled for training until then."""
    seconds: float
    """Of all steps until then; what evaluations and checkpoints took is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run."""

    directory: Path
    config: RunConfig
    steps_done: int
    points: tuple[Progress, ...]
    """Its evaluations of sampled trajectories, by version."""

    @property
    def name(self) -> str:
        return self.config.run.name

    @property
    def finished(self) -> bool:
        return self.steps_done == self.config.run.steps

    @property
    def last(self) -> Progress | None:
        return self.points[-1] if self.points else None

    def reached(self, reward: float) -> Progress | None:
        """The first evaluation whose mean reward is at least this."""
        return next((p for p in self.points if p.report.reward and p.report.reward.mean >= reward), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Runs side by side; the first one is what the others are compared with."""

    runs: tuple[RunSummary, ...]
    parameters: tuple[tuple[str, tuple[str, ...]], ...]
    """Keys that differ, with each run's value."""
    paired: tuple[Comparison | str | None, ...]
    """Of each run against the first one, over common problems; or why not. None for the first."""
    target: float | None
    """The reward whose price is compared: unless named, the lowest last held-out reward among the runs."""


def read_run(path: Path) -> RunSummary:
    """A run from its directory. Raises `UserError` if it is none."""
    directory = RunDirectory(path)
    if not directory.config_file.exists():
        raise UserError(f"{path} is not a run directory (no config.toml)")
    check_layout(directory)
    config = recorded_config(path)
    points, tokens, seconds, step = [], 0.0, 0.0, 0
    for version in directory.evaluations():
        while step < version and directory.step(step).metrics_file.exists():
            metrics = _metrics(directory.step(step).metrics_file)
            tokens += metrics.get("rollout/sampled_tokens/sum", 0.0)
            seconds += metrics.get("time/step/seconds", 0.0)
            step += 1
        report = directory.evaluation(version, "sampled").report_file
        if report.exists():
            points.append(Progress(version=version, report=read_report(report), tokens=int(tokens), seconds=seconds))
    done = sum(1 for number in directory.steps() if directory.step(number).update_file.exists())
    return RunSummary(directory=path, config=config, steps_done=done, points=tuple(points))


def find_runs(root: Path) -> tuple[list[RunSummary], list[str]]:
    """All runs under a folder by name, and what is wrong with those that cannot be read."""
    found, faults = [], []
    for file in sorted(root.glob("*/config.toml")):
        try:
            found.append(read_run(file.parent))
        except AgentFlyError as error:
            faults.append(f"{file.parent}: {error}")
    return found, faults


def compare_runs(paths: Sequence[Path], *, target: float | None = None) -> RunComparison:
    """Reads runs and compares all with the first; `target` is the reward whose price is compared.

    Raises `UserError` for fewer than two, or a folder that is none.
    """
    if len(paths) < 2:
        raise UserError("a comparison needs at least two runs; `agentfly runs` lists them")
    runs = tuple(read_run(path) for path in paths)
    lasts = [run.last.report.reward.mean for run in runs if run.last and run.last.report.reward]
    return RunComparison(
        runs=runs,
        parameters=_differences(runs),
        paired=(None, *(_pair(runs[0], other) for other in runs[1:])),
        target=target if target is not None else min(lasts) if len(lasts) == len(runs) else None,
    )


def _pair(first: RunSummary, other: RunSummary) -> Comparison | str:
    if first.last is None or other.last is None:
        return "not evaluated yet"
    try:
        return compare(first.last.report, other.last.report)
    except ValueError as error:
        return str(error)


def _differences(runs: Sequence[RunSummary]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    flat = [flatten_config(run.config) for run in runs]
    keys = sorted(set().union(*flat) - {"run.name", "run.root"})
    rows = [(key, tuple("" if key not in values else str(values[key]) for values in flat)) for key in keys]
    return tuple((key, values) for key, values in rows if len(set(values)) > 1)


def _metrics(file: Path) -> dict[str, float]:
    values = read_json(file)
    if not isinstance(values, dict):
        raise ShardError(f"{file} holds no metrics; remove it")
    return values
