"""Train on the scored rollouts of a step, and save checkpoints.

A checkpoint is copied in the learner's memory while the run waits, and written while it goes on; the next update, or
the next checkpoint, takes note of it. What went wrong in between is raised there, and tried again with the weights that
the learner then holds. The last one of a run is waited for.
"""

from __future__ import annotations

import asyncio
import logging

from prefect import task
from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL

from agentfly_lib.configs import CheckpointConfig
from agentfly_lib.errors import AgentFlyError, LearnerError
from agentfly_lib.evaluation.report import read_report
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import CheckpointRef, LearnerRef, StepReport
from agentfly_lib.store.atomic import write_json
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.training.checkpoint import prune
from agentfly_lib.training.ranks import Learner
from tasks.options import RETRIED, within
from tasks.session import current_session
from tasks.workers import living_learner

__all__ = ["checkpoint", "forget", "settle", "update"]

logger = logging.getLogger(__name__)

END_SECONDS = 30.0
"""How long a session that ends early waits for a checkpoint."""


@task(name="update", task_run_name="update-{step:06d}", **RETRIED)
async def update(step: int, learner: LearnerRef) -> tuple[StepReport, LearnerRef]:
    """One step of learning: version `step` becomes version `step` + 1."""
    session = current_session()
    async with within(
        session.config.learner.update_timeout_seconds + session.config.learner.start_timeout_seconds, f"update {step}"
    ):
        directory = session.directory.step(step)
        async with session.learning:
            with session.display.stage(f"update-{step:06d}"):
                learner = await living_learner(session, step, learner)
                await session.keeper.rest()
                with session.times.activity.updating():
                    report = await Learner(learner, session.config.learner).update(directory.path, step)
            await asyncio.to_thread(write_json, directory.update_file, report.model_dump(mode="json"))
            session.version = report.policy_version
        learner = learner.model_copy(update={"policy_version": report.policy_version})
        if session.saving is not None:
            await settle(learner, wait=False)
        return report, learner


@task(name="checkpoint", task_run_name="checkpoint-{version:06d}", **RETRIED)
async def checkpoint(version: int, learner: LearnerRef) -> None:
    """Saves everything a resume needs, in the background unless the run ends with this version."""
    session = current_session()
    async with within(
        session.config.learner.update_timeout_seconds + session.config.learner.start_timeout_seconds,
        f"checkpoint {version}",
    ):
        with session.times.outside(), session.display.stage(f"checkpoint-{version:06d}"):
            async with session.learning:
                learner = await living_learner(session, version, learner)
            if session.saving is not None:
                await settle(learner, wait=True)
                if session.directory.checkpoint(version).exists():  # it made up for one that was lost
                    return
            _settle_at_the_end(session, learner)
            async with session.learning:
                session.saving = version  # first: a beginning that is cancelled may be writing all the same
                await Learner(learner, session.config.learner).begin_save(session.directory.checkpoint(version))
            if version == session.config.run.steps:
                await settle(learner, wait=True)


@task(name="checkpoint-written", **RETRIED)
async def settle(learner: LearnerRef, *, wait: bool) -> None:
    """Takes note of the checkpoint that is being written, once it is: forgets older ones, and tells who wants to know.

    One that failed, or went with the ranks that wrote it, is made up for by one of the version that the learner holds.
    """
    session = current_session()
    async with session.learning:
        saved = await _saved(session, Learner(learner, session.config.learner), learner.policy_version, wait=wait)
    if saved is None:
        return
    session.saving = None
    await asyncio.to_thread(forget, session.directory, session.config.checkpoint)
    session.tracker.log_checkpoint(saved.path, version=saved.policy_version, digest=saved.digest)
    _announce(session, saved)


async def _saved(session: Session, learner: Learner, held: int, *, wait: bool) -> CheckpointRef | None:
    """The checkpoint that was begun, or one that makes up for it; None while it is being written."""
    done, saved = await learner.finish_save(wait=wait)
    if not done and wait:
        raise LearnerError(
            f"checkpoint {session.saving} is still being written; raise "
            "learner.update_timeout_seconds, or look at the disk"
        )
    if not done or saved is not None:
        return saved
    logger.warning("checkpoint %s was not written; version %d is saved instead", session.saving, held)
    return await learner.save(session.directory.checkpoint(held))


def _settle_at_the_end(session: Session, learner: LearnerRef) -> None:
    """However the session ends, what is being written then gets a moment to be done before the ranks end."""

    async def end() -> None:
        if session.saving is None:
            return
        try:
            async with asyncio.timeout(END_SECONDS):
                await Learner(learner, session.config.learner).finish_save(wait=True)
        except (AgentFlyError, TimeoutError) as error:
            logger.warning("checkpoint %d was not written: %s", session.saving, error or "there was no time left")

    if not session.settles:
        session.settles = True
        session.closing.push_async_callback(end)


def forget(directory: RunDirectory, keep: CheckpointConfig) -> None:
    """Deletes the checkpoints that are neither among the newest nor among the best."""
    rewards: dict[int, float] = {}
    for version in directory.evaluations() if keep.keep_best else ():
        report = directory.evaluation(version, "sampled").report_file
        if report.exists() and (reward := read_report(report).reward) is not None:
            rewards[version] = reward.mean
    prune(directory.checkpoints, keep.keep_last, keep_best=keep.keep_best, rewards=rewards)


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
            "config": str(session.directory.config_file.resolve()),
        },
    )
