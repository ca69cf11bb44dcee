"""What people get to see: the metrics of a step as it ends, and the report of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)
from pydantic import BaseModel, ConfigDict

from agentfly_lib.errors import AgentFlyError
from agentfly_lib.evaluation.report import EvaluationReport, read_report
from agentfly_lib.evaluation.rollout_metrics import rollout_metrics
from agentfly_lib.evaluation.table import report_table
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import ScoresRef, ShardsRef, StepReport
from agentfly_lib.store.atomic import read_json, write_bytes, write_json
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.tracking.plots import EvaluationPoint, reward_curve, time_split
from agentfly_lib.tracking.tracker import tracking_uri
from agentfly_lib.training.checkpoint import checkpoint_at
from agentfly_lib.types import Problem, Trajectory, TrajectoryGroup
from agentfly_lib.viewer.summary import TIME_PARTS, summary_markdown, summary_text
from agentfly_lib.viewer.trouble import troubles, troubles_markdown
from agentfly_lib.viewer.web.pictures import data_url
from agentfly_lib.viewer.web.serve import export_run
from tasks.options import RETRIED
from tasks.session import current_session

__all__ = [
    "EvaluateReport",
    "TrainReport",
    "catch_up",
    "publish_evaluations",
    "record_step",
    "report",
    "report_evaluation",
]


logger = logging.getLogger(__name__)
_PAGE = "trajectories.html"


class TrainReport(BaseModel):
    """What a training run came to."""

    model_config = ConfigDict(frozen=True)

    name: str
    directory: Path
    baseline: dict[str, float]
    """Metrics of the starting policy."""
    final: dict[str, float]
    """Metrics of the last evaluated policy."""
    text: str
    """For a terminal."""


async def record_step(shards: ShardsRef, scores: ScoresRef, update: StepReport) -> None:
    """Sends the step's metrics to MLflow, to the table on the screen, and to the page. Waits for nothing slow."""
    session = current_session()
    await _record(
        session, update, _counted(session.times.metrics(update), scores) | {"rollout/parts/count": float(shards.parts)}
    )
    tracking, groups = session.config.tracking, session.times.groups
    if groups and tracking.sample_trajectories and update.step % tracking.trace_every_steps == 0:
        session.tracker.log_trajectories(update.step, _sample(groups, tracking.sample_trajectories))
    session.in_background(_page_progress(session, update.step + 1))


@task(name="catch-up", **RETRIED)
async def catch_up() -> None:
    """Sends to MLflow what a killed run had recorded and not sent: updates, and references to checkpoints.

    A step's own file of metrics is written after they went to the tracker, so a step without one was not sent.
    """
    session = current_session()
    for step in range(session.first_open_step()):
        directory = session.directory.step(step)
        if not directory.metrics_file.exists():
            update = StepReport.model_validate(await asyncio.to_thread(read_json, directory.update_file))
            groups = await asyncio.to_thread(load_scored_groups, directory)
            await _record(session, update, update.metrics | rollout_metrics(groups))
    for version in session.checkpoints():
        saved = await asyncio.to_thread(checkpoint_at, session.directory.checkpoint(version))
        session.tracker.log_checkpoint(saved.path, version=version, digest=saved.digest)


async def _record(session: Session, update: StepReport, metrics: dict[str, float]) -> None:
    session.tracker.log_metrics(update.step, metrics)
    await asyncio.to_thread(write_json, session.directory.step(update.step).metrics_file, metrics)
    session.display.row(str(update.step), metrics)
    if session.steps_bar is not None:
        session.steps_bar.update(completed=update.step + 1)


def _counted(metrics: dict[str, float], scores: ScoresRef) -> dict[str, float]:
    return metrics | {
        "rollout/scored/count": float(scores.scored),
        "rollout/truncated/count": float(scores.truncated),
        "rollout/failed/count": float(scores.failed),
        "rollout/dropped/count": float(scores.dropped),
    }


class EvaluateReport(BaseModel):
    """What a stand-alone evaluation found."""

    model_config = ConfigDict(frozen=True)

    metrics: dict[str, float]
    directory: Path
    text: str


@task(name="report", **RETRIED)
async def report_evaluation(policy: str) -> EvaluateReport:
    """The table of a stand-alone evaluation, for the terminal, Prefect and MLflow."""
    session = current_session()
    evaluations = await asyncio.to_thread(_evaluations, session)
    table = [dict(row) | {"policy": policy} for row in report_table(evaluations)]
    session.tracker.log_table("evaluations", table)
    await acreate_table_artifact(table, key=_key(session.config.run.name), description=f"Evaluation of {policy}")
    metrics: dict[str, float] = {}
    for evaluation in evaluations:
        metrics |= evaluation.metrics
    text = summary_text(policy, table, [], {"run directory": str(session.directory.path)}, root=session.config.run.root)
    return EvaluateReport(metrics=metrics, directory=session.directory.path, text=text)


@task(name="report", **RETRIED)
async def report(name: str) -> TrainReport:
    """Reward before and after, its plot, and where the time went: as text, as Prefect artifacts, and in MLflow."""
    session = current_session()
    evaluations = await asyncio.to_thread(_evaluations, session)
    steps = await asyncio.to_thread(_step_metrics, session)
    figures = await asyncio.to_thread(_plot, session, evaluations, steps)
    for figure in figures:
        session.tracker.log_figure(figure)
    table = await publish_evaluations(session)
    links = {
        "run directory": str(session.directory.path),
        "MLflow": tracking_uri(session.config.tracking, session.config.run.root),
        **{figure.stem: str(figure) for figure in figures},
    }
    links |= {"report": str(session.directory.path / "report.md"), "page": str(session.directory.path / _PAGE)}

    def text(pictures: dict[str, str], trouble: str) -> str:
        return summary_markdown(name, table, steps, links, pictures=pictures, trouble=trouble)

    await _publish_report(session, figures, text)
    sampled = [evaluation for evaluation in evaluations if evaluation.mode == "sampled"]
    return TrainReport(
        name=name,
        directory=session.directory.path,
        baseline=sampled[0].metrics if sampled else {},
        final=sampled[-1].metrics if sampled else {},
        text=summary_text(name, table, steps, links, root=session.config.run.root),
    )


async def _publish_report(
    session: Session, figures: Sequence[Path], text: Callable[[dict[str, str], str], str]
) -> None:
    """The report as `report.md` and on the Prefect page, and a page of trajectories beside it and in MLflow.

    Rollouts that cannot be read any more cost what would show them, not the report.
    """
    directory = session.directory.path
    page, trouble = directory / _PAGE, ""
    try:
        trouble = troubles_markdown(directory, await asyncio.to_thread(troubles, directory))
        await asyncio.to_thread(export_run, directory, page)
        session.tracker.log_file(page)
    except AgentFlyError as error:
        logger.warning("trajectories are not shown in the report: %s", error)
    beside = {figure.stem: figure.relative_to(directory).as_posix() for figure in figures}
    await asyncio.to_thread(write_bytes, directory / "report.md", text(beside, trouble).encode())
    session.tracker.log_file(directory / "report.md")
    within = {figure.stem: url for figure in figures if (url := data_url(figure.read_bytes())) is not None}
    name = session.config.run.name
    await acreate_markdown_artifact(text(within, trouble), key=_key(f"report-{name}"), description=f"Report of {name}")


async def publish_evaluations(session: Session) -> list[dict[str, str]]:
    """The table of all evaluations so far, for MLflow and the Prefect page; it replaces the one before."""
    table = report_table(await asyncio.to_thread(_evaluations, session))
    session.tracker.log_table("evaluations", table)
    name = session.config.run.name
    await acreate_table_artifact(table, key=_key(f"evaluations-{name}"), description=f"Held-out evaluation of {name}")
    return table


async def _page_progress(session: Session, done: int) -> None:
    share = 100 * done / session.config.run.steps
    if session.progress_artifact is None:
        key = _key(f"progress-{session.config.run.name}")
        session.progress_artifact = await acreate_progress_artifact(share, key=key, description="Steps done")
    else:
        await aupdate_progress_artifact(session.progress_artifact, share)


def _sample(groups: Sequence[TrajectoryGroup], count: int) -> list[tuple[Trajectory, Problem]]:
    """The first chain of evenly spread groups."""
    stride = max(1, len(groups) // count)
    return [(group.trajectories[0], group.problem) for group in groups[::stride][:count]]


def _evaluations(session: Session) -> list[EvaluationReport]:
    found = []
    for version in session.directory.evaluations():
        for mode in session.evaluation_modes:
            file = session.directory.evaluation(version, mode).report_file
            if file.exists():
                found.append(read_report(file))
    return found


def _plot(
    session: Session, evaluations: list[EvaluationReport], steps: list[tuple[int, dict[str, float]]]
) -> list[Path]:
    """Draws what there is to draw; returns the files."""
    folder = session.directory.path / "figures"
    greedy = {
        report.policy_version: report.reward.mean for report in evaluations if report.mode == "greedy" and report.reward
    }
    points = [
        EvaluationPoint(
            step=report.policy_version,
            mean=report.reward.mean,
            low=report.reward.low,
            high=report.reward.high,
            greedy=greedy.get(report.policy_version),
        )
        for report in evaluations
        if report.mode == "sampled" and report.reward
    ]
    rewards = [(step, metrics["train/reward/mean"]) for step, metrics in steps if "train/reward/mean" in metrics]
    figures = [reward_curve(rewards, points, folder / "reward.png", title=f"Reward of {session.config.run.name}")]
    parts = [
        (step, {part.replace("_", " / "): metrics[f"time/{part}/seconds"] for part in TIME_PARTS})
        for step, metrics in steps
        if metrics.get("time/generation/seconds")
    ]
    if parts:
        figures.append(time_split(parts, folder / "time.png"))
    return figures


def _step_metrics(session: Session) -> list[tuple[int, dict[str, float]]]:
    files = [(step, session.directory.step(step).metrics_file) for step in session.directory.steps()]
    return [(step, read_json(file)) for step, file in files if file.exists()]


def _key(text: str) -> str:
    """Prefect's artifact keys hold lower-case letters, digits and dashes."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).strip("-")
