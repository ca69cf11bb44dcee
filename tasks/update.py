"""Train on the scored rollouts of a step, and save checkpoints."""

from __future__ import annotations

import asyncio

from prefect import task
from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL

from agentfly_lib.configs import CheckpointConfig
from agentfly_lib.evaluation.report import read_report
from agentfly_lib.refs import CheckpointRef, LearnerRef, StepReport
from agentfly_lib.store.atomic import write_json
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.training.checkpoint import prune
from agentfly_lib.training.ranks import Learner
from tasks.options import RETRIED, within
from tasks.session import Session, current_session
from tasks.workers import living_learner

__all__ = ["checkpoint", "forget", "update"]


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
            session.version = report.policy_version
        await asyncio.to_thread(write_json, directory.update_file, report.model_dump(mode="json"))
        return report, learner.model_copy(update={"policy_version": report.policy_version})


@task(name="checkpoint", task_run_name="checkpoint-{version:06d}", **RETRIED)
async def checkpoint(version: int, learner: LearnerRef) -> CheckpointRef:
    """Saves everything a resume needs, and forgets older checkpoints that are not among the best."""
    session = current_session()
    async with within(
        session.config.learner.update_timeout_seconds + session.config.learner.start_timeout_seconds,
        f"checkpoint {version}",
    ):
        with session.times.outside(), session.display.stage(f"checkpoint-{version:06d}"):
            async with session.learning:
                learner = await living_learner(session, version, learner)
                saved = await Learner(learner, session.config.learner).save(session.directory.checkpoint(version))
            await asyncio.to_thread(forget, session.directory, session.config.checkpoint)
        session.tracker.log_checkpoint(saved.path, version=version, digest=saved.digest)
        _announce(session, saved)
        return saved


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
