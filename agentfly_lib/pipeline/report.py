"""The report of a run: reward before and after, its plot, and where the time went."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentfly_lib.errors import AgentFlyError
from agentfly_lib.evaluation.report import EvaluationReport
from agentfly_lib.evaluation.table import report_table
from agentfly_lib.pipeline.evaluation import evaluation_reports
from agentfly_lib.pipeline.session import Session
from agentfly_lib.store.atomic import read_json, write_bytes
from agentfly_lib.tracking.plots import EvaluationPoint, reward_curve, time_split
from agentfly_lib.tracking.tracker import tracking_uri
from agentfly_lib.viewer.summary import TIME_PARTS, summary_markdown, summary_text
from agentfly_lib.viewer.trouble import troubles, troubles_markdown
from agentfly_lib.viewer.web.pictures import data_url
from agentfly_lib.viewer.web.serve import export_run

__all__ = ["EvaluateReport", "TrainReport", "WrittenReport", "evaluation_report", "write_report"]

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


class EvaluateReport(BaseModel):
    """What a stand-alone evaluation found."""

    model_config = ConfigDict(frozen=True)

    metrics: dict[str, float]
    directory: Path
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """The report of a run, as it is in its directory and in MLflow."""

    summary: TrainReport
    table: list[dict[str, str]]
    """Of the evaluations."""
    markdown: str
    """With its pictures inside."""


async def evaluation_report(session: Session, policy: str) -> tuple[EvaluateReport, list[dict[str, str]]]:
    """What a stand-alone evaluation found, and its table; MLflow gets the table too."""
    evaluations = await asyncio.to_thread(evaluation_reports, session)
    table = [dict(row) | {"policy": policy} for row in report_table(evaluations)]
    session.tracker.log_table("evaluations", table)
    metrics: dict[str, float] = {}
    for evaluation in evaluations:
        metrics |= evaluation.metrics
    directory = session.directory.path
    text = summary_text(policy, table, [], {"run directory": str(directory)}, root=session.config.run.root)
    return EvaluateReport(metrics=metrics, directory=directory, text=text), table


async def write_report(session: Session) -> WrittenReport:
    """Writes `report.md`, figures, and a page of trajectories beside it; MLflow gets them too.

    Rollouts that cannot be read any more cost what would show them, not the report.
    """
    config, directory = session.config, session.directory.path
    evaluations = await asyncio.to_thread(evaluation_reports, session)
    steps = await asyncio.to_thread(_step_metrics, session)
    figures = await asyncio.to_thread(_draw, session, evaluations, steps)
    for figure in figures:
        session.tracker.log_figure(figure)
    table = report_table(evaluations)
    session.tracker.log_table("evaluations", table)
    links = {
        "run directory": str(directory),
        "MLflow": tracking_uri(config.tracking, config.run.root),
        **{figure.stem: str(figure) for figure in figures},
        "report": str(directory / "report.md"),
        "page": str(directory / _PAGE),
    }
    trouble = await _export(session)

    def markdown(pictures: dict[str, str]) -> str:
        return summary_markdown(config.run.name, table, steps, links, pictures=pictures, trouble=trouble)

    beside = {figure.stem: figure.relative_to(directory).as_posix() for figure in figures}
    await asyncio.to_thread(write_bytes, directory / "report.md", markdown(beside).encode())
    session.tracker.log_file(directory / "report.md")
    sampled = [evaluation for evaluation in evaluations if evaluation.mode == "sampled"]
    summary = TrainReport(
        name=config.run.name,
        directory=directory,
        baseline=sampled[0].metrics if sampled else {},
        final=sampled[-1].metrics if sampled else {},
        text=summary_text(config.run.name, table, steps, links, root=config.run.root),
    )
    return WrittenReport(summary=summary, table=table, markdown=markdown(await asyncio.to_thread(_inside, figures)))


async def _export(session: Session) -> str:
    """Writes the page of trajectories; returns what went wrong in the run, as markdown."""
    directory = session.directory.path
    page, trouble = directory / _PAGE, ""
    try:
        trouble = troubles_markdown(directory, await asyncio.to_thread(troubles, directory))
        await asyncio.to_thread(export_run, directory, page)
        session.tracker.log_file(page)
    except AgentFlyError as error:
        logger.warning("trajectories are not shown in the report: %s", error)
    return trouble


def _inside(figures: Sequence[Path]) -> dict[str, str]:
    return {figure.stem: url for figure in figures if (url := data_url(figure.read_bytes())) is not None}


def _draw(
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
