"""What a step came to: to MLflow, to the table on the screen, and to the page."""

from __future__ import annotations

from prefect import task

from agentfly_lib.pipeline import record
from agentfly_lib.refs import ScoresRef, ShardsRef, StepReport
from tasks.links import forget_old_links
from tasks.options import RETRIED
from tasks.session import current_page, current_session

__all__ = ["catch_up", "record_step", "record_update"]


@task(name="record", task_run_name="record-{update.step:06d}", **RETRIED)
async def record_step(shards: ShardsRef, scores: ScoresRef, update: StepReport) -> None:
    """Sends a step's metrics, and some of its trajectories. Waits for nothing slow."""
    session, page = current_session(), current_page()
    await record.record_step(session, shards, scores, update)
    forget_old_links()
    session.background.start(page.steps_done(100 * (update.step + 1) / session.config.run.steps))


@task(name="record", task_run_name="record-{update.step:06d}", **RETRIED)
async def record_update(update: StepReport) -> None:
    """Sends the metrics of an update that nothing was collected for."""
    session, page = current_session(), current_page()
    await record.record_update(session, update, update.metrics)
    forget_old_links()
    session.background.start(page.steps_done(100 * (update.step + 1) / session.config.run.steps))


@task(name="catch-up", **RETRIED)
async def catch_up() -> None:
    """Sends to MLflow what a killed run had recorded and not sent: updates, and references to checkpoints."""
    await record.catch_up(current_session())
