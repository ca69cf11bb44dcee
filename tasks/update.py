"""Train on the scored rollouts of a step, and save checkpoints."""

from __future__ import annotations

import asyncio

from prefect import task
from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL

from agentfly_lib.pipeline import limits, saving
from agentfly_lib.pipeline.limits import within
from agentfly_lib.pipeline.session import Session
from agentfly_lib.pipeline.workers import learner_to_save
from agentfly_lib.refs import CheckpointRef, LearnerRef, StepReport
from tasks.options import RETRIED, is_retry
from tasks.session import current_session

__all__ = ["checkpoint", "settle", "update"]


@task(name="update", task_run_name="update-{step:06d}", **RETRIED)
async def update(step: int, learner: LearnerRef) -> tuple[StepReport, LearnerRef]:
    """One step of learning: version `step` becomes version `step` + 1."""
    session = current_session()
    async with within(limits.update(session.config, session.schedule.since_checkpoint(step)), f"update {step}"):
        report, learner = await saving.update(session, step, learner, again=is_retry())
        if session.learning.saving is not None:
            await settle(learner, wait=False)
        return report, learner


@task(name="checkpoint", task_run_name="checkpoint-{version:06d}", **RETRIED)
async def checkpoint(version: int, learner: LearnerRef) -> None:
    """Saves everything a resume needs, in the background unless the run ends with this version."""
    session = current_session()
    limit = limits.checkpoint(session.config, session.schedule.since_checkpoint(version))
    async with within(limit, f"checkpoint {version}"):
        with session.times.outside(), session.display.stage(f"checkpoint-{version:06d}"):
            async with session.learning.turn():
                learner = await learner_to_save(session, version, learner, again=is_retry())
            if session.learning.saving is not None:
                await settle(learner, wait=True)
                if session.directory.checkpoint(version).exists():  # it made up for one that was lost
                    return
            await saving.begin_checkpoint(session, version, learner)
            if version == session.config.run.steps:
                await settle(learner, wait=True)


@task(name="checkpoint-written", **RETRIED)
async def settle(learner: LearnerRef, *, wait: bool) -> None:
    """Takes note of the checkpoint that is being written, once it is: tells who wants to know, and forgets older ones.

    A task of its own, so that an update whose checkpoint has failed is not made again with it.
    """
    session = current_session()
    saved = await saving.settle(session, learner, wait=wait)
    if saved is not None:
        _announce(session, saved)
        await asyncio.to_thread(saving.forget, session.directory, session.config.checkpoint)


def _announce(session: Session, saved: CheckpointRef) -> None:
    """Tells a Prefect server, if there is one, so that automations may follow (`prefect.yaml` evaluates)."""
    if PREFECT_API_URL.value() is None:
        return
    emit_event(
        event="agentfly.checkpoint.saved",
        resource={
            "prefect.resource.id": f"agentfly.run.{session.config.run.name}",
            "prefect.resource.name": session.config.run.name,
        },
        payload={
            "path": str(saved.path.resolve()),
            "policy_version": saved.policy_version,
        },
    )
