"""What a step came to, sent on: to MLflow, to the table on the screen, and to a file of the step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from agentfly_lib.errors import ShardError
from agentfly_lib.evaluation.rollout_metrics import rollout_metrics
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import ScoresRef, ShardsRef, StepReport
from agentfly_lib.store.atomic import write_json
from agentfly_lib.store.recorded import read_update
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.training.checkpoint import checkpoint_at
from agentfly_lib.types import Problem, Trajectory, TrajectoryGroup

__all__ = ["catch_up", "record_step", "record_update"]

logger = logging.getLogger(__name__)


async def record_step(session: Session, shards: ShardsRef, scores: ScoresRef, update: StepReport) -> None:
    """The metrics of a step, and some of its trajectories."""
    counts = {
        "rollout/scored/count": float(scores.scored),
        "rollout/truncated/count": float(scores.truncated),
        "rollout/failed/count": float(scores.failed),
        "rollout/dropped/count": float(scores.dropped),
        "rollout/parts/count": float(shards.parts),
    }
    await record_update(session, update, session.times.metrics(update) | counts)
    tracking, groups = session.config.tracking, session.times.groups
    if groups and tracking.sample_trajectories and update.step % tracking.trace_every_steps == 0:
        session.tracker.log_trajectories(update.step, _sample(groups, tracking.sample_trajectories))


async def record_update(session: Session, update: StepReport, metrics: dict[str, float]) -> None:
    """The metrics of a step; the file is written after they went to the tracker."""
    session.tracker.log_metrics(update.step, metrics)
    await asyncio.to_thread(write_json, session.directory.step(update.step).metrics_file, metrics)
    session.display.row(str(update.step), metrics)
    if session.steps_bar is not None:
        session.steps_bar.update(completed=update.step + 1)


async def catch_up(session: Session) -> None:
    """Sends to MLflow what a killed run had recorded and not sent: updates, and references to checkpoints.

    A step's own file of metrics is written after they went to the tracker, so a step without one was not sent.
    """
    for step in range(session.schedule.first_open_step()):
        directory = session.directory.step(step)
        if not directory.metrics_file.exists():
            update = await asyncio.to_thread(read_update, directory)
            groups = await asyncio.to_thread(load_scored_groups, directory)
            await record_update(session, update, update.metrics | rollout_metrics(groups))
    for version in session.schedule.checkpoints():
        try:
            saved = await asyncio.to_thread(checkpoint_at, session.directory.checkpoint(version))
        except ShardError as error:  # one of the past, which a resume does without
            logger.warning("checkpoint %d was not reported to MLflow: %s", version, error)
            continue
        session.tracker.log_checkpoint(saved.path, version=version, digest=saved.digest)


def _sample(groups: Sequence[TrajectoryGroup], count: int) -> list[tuple[Trajectory, Problem]]:
    """The first chain of evenly spread groups."""
    stride = max(1, len(groups) // count)
    return [(group.trajectories[0], group.problem) for group in groups[::stride][:count]]
