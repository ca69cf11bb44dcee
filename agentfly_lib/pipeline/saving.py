"""The updates of the learner, and the checkpoints that are written meanwhile.

A checkpoint is copied in the learner's memory while the run waits, and written while it goes on; the next update, or
the next checkpoint, takes note of it. What went wrong in between is raised there, and tried again with the weights that
the learner then holds. The last one of a run is waited for.
"""

from __future__ import annotations

import asyncio
import logging

from agentfly_lib.configs import CheckpointConfig, LearnerConfig
from agentfly_lib.errors import AgentFlyError, LearnerError
from agentfly_lib.evaluation.report import read_report
from agentfly_lib.pipeline.learning import Saving
from agentfly_lib.pipeline.session import Session
from agentfly_lib.pipeline.workers import living_learner
from agentfly_lib.refs import CheckpointRef, LearnerRef, StepReport
from agentfly_lib.store.atomic import write_model
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.recorded import read_update
from agentfly_lib.store.scores import read_score_manifest
from agentfly_lib.training.checkpoint import prune
from agentfly_lib.training.ranks import Learner

__all__ = ["begin_checkpoint", "finish_early", "forget", "settle", "update"]

logger = logging.getLogger(__name__)

END_SECONDS = 10.0
"""How long a session that ends early waits for a checkpoint. A worker kills a cancelled run after 30 s."""


async def update(session: Session, step: int, learner: LearnerRef, *, again: bool) -> tuple[StepReport, LearnerRef]:
    """One step of learning: version `step` becomes version `step` + 1."""
    directory = session.directory.step(step)
    async with session.learning.turn() as turn:
        if again and directory.update_file.exists():  # what failed came after it
            stored = await asyncio.to_thread(read_update, directory)
            turn.holds(stored.policy_version)
            return stored, await living_learner(session, stored.policy_version, learner, again=True)
        with session.display.stage(f"update-{step:06d}"):
            learner = await living_learner(session, step, learner, again=again)
            await session.keeper.rest()
            with session.times.activity.updating():
                report = await Learner(learner, session.config.learner).update(directory.path, step)
        scores = await asyncio.to_thread(read_score_manifest, directory)
        report = report.model_copy(update={"reward": scores.reward})
        await asyncio.to_thread(write_model, directory.update_file, report)
        turn.holds(report.policy_version)
    return report, learner.model_copy(update={"policy_version": report.policy_version})


async def begin_checkpoint(session: Session, version: int, learner: LearnerRef) -> None:
    """Has everything written that a resume needs; `settle` takes note of it. None before may be owed."""
    async with session.learning.turn() as turn:
        turn.saves(version, learner)  # first: a beginning that is cancelled may be writing all the same
        await Learner(learner, session.config.learner).begin_save(session.directory.checkpoint(version))


async def settle(session: Session, learner: LearnerRef, *, wait: bool) -> CheckpointRef | None:
    """Takes note of the checkpoint that was begun, once it is written; None while it is not, or if none was begun.

    One that failed, or went with the ranks that wrote it, is made up for by one of the version that the learner holds.
    """
    async with session.learning.turn() as turn:
        begun = session.learning.saving
        if begun is None:
            return None
        saved = await _saved(session, begun.version, learner, wait=wait)
        if saved is None:
            return None
        turn.saved()
    session.tracker.log_checkpoint(saved.path, version=saved.policy_version, digest=saved.digest)
    return saved


async def _saved(session: Session, begun: int, ref: LearnerRef, *, wait: bool) -> CheckpointRef | None:
    """The checkpoint that was begun, or one that makes up for it; None while it is being written."""
    learner, held = Learner(ref, session.config.learner), ref.policy_version
    done, saved = await learner.finish_save(wait=wait)
    if not done and wait:
        raise LearnerError(
            f"checkpoint {begun} is still being written; raise learner.update_timeout_seconds, or check the disk"
        )
    if not done or saved is not None:
        return saved
    logger.warning("checkpoint %d was not written; version %d is saved instead", begun, held)
    return await learner.save(session.directory.checkpoint(held))


async def finish_early(saving: Saving, config: LearnerConfig) -> None:
    """A checkpoint that is being written when its session ends gets a moment to be done before the ranks end."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await Learner(saving.learner, config).finish_save(wait=True)
    except (AgentFlyError, TimeoutError) as error:
        logger.warning("checkpoint %d was not written: %s", saving.version, error or "there was no time left")


def forget(directory: RunDirectory, keep: CheckpointConfig) -> None:
    """Deletes the checkpoints that are neither among the newest nor among the best."""
    rewards: dict[int, float] = {}
    for version in directory.evaluations() if keep.keep_best else ():
        report = directory.evaluation(version, "sampled").report_file
        if report.exists() and (reward := read_report(report).reward) is not None:
            rewards[version] = reward.mean
    prune(directory.checkpoints, keep.keep_last, keep_best=keep.keep_best, rewards=rewards)
