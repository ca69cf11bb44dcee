"""The long-lived parts: inference engines and learner ranks. Here they are found, revived and synchronised.

A learner that had to be replaced starts from the newest checkpoint and is brought up to the version that is needed by
training again on the stored rollouts; an engine that had to be replaced is given the learner's weights. An engine that
says it serves the version already, because it was found, proves it by a canary, and is given the weights if it cannot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import closing
from typing import Any

from prefect import task
from prefect.runtime import task_run

from agentfly_lib.cluster import end_actors
from agentfly_lib.errors import LearnerError
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import EngineRef, LearnerRef, ModelRef, StepReport
from agentfly_lib.store.atomic import read_json
from agentfly_lib.training.checkpoint import newest_checkpoint
from agentfly_lib.training.ranks import Learner, ensure_learner, ranks_alive
from tasks.options import RETRIED, within
from tasks.session import current_session

__all__ = [
    "learner_at",
    "living_engines",
    "living_learner",
    "ready",
    "start_engines",
    "start_learner",
    "start_workers",
    "sync",
]

logger = logging.getLogger(__name__)


@task(name="start", **RETRIED)
async def start_workers(model: ModelRef) -> tuple[EngineRef, LearnerRef]:
    """Starts Ray, then engines and learner at the same time, or finds those that are running."""
    session = current_session()
    async with within(session.start_seconds, "the start of engine and learner"):
        with session.display.stage("start engine and learner"):
            await session.start_cluster()
            _end_with(session)
            return await _both(session, model, _learner(session, model))


@task(name="start-engines", **RETRIED)
async def start_engines(model: ModelRef) -> EngineRef:
    """Starts Ray and the engines alone, for flows that do not train."""
    session = current_session()
    async with within(session.start_seconds, "the start of the engine"):
        with session.display.stage("start engine"):
            await session.start_cluster()
            _end_with(session)
            return await session.keeper.ask(model)


async def start_learner(session: Session, version: int) -> LearnerRef:
    """Starts Ray and the learner alone, for a flow that generates nothing, and brings it to a version."""
    await session.start_cluster()
    _end_with(session)
    return await learner_at(session, version)


@task(name="sync", task_run_name="sync-{version:06d}", **RETRIED)
async def sync(version: int, engines: EngineRef, learner: LearnerRef) -> tuple[EngineRef, LearnerRef]:
    """Learner and engines hold this version of the policy afterwards, proven by a canary."""
    session = current_session()
    async with within(
        session.start_seconds + session.config.learner.update_timeout_seconds * max(version, 1), f"sync {version}"
    ):
        session.times.begin(version)
        async with session.learning:
            session.version = version
            with session.display.stage(f"sync-{version:06d}"):
                return await _synced(session, version, engines, learner)


async def _synced(
    session: Session, version: int, engines: EngineRef, learner: LearnerRef
) -> tuple[EngineRef, LearnerRef]:
    if _first_try() and learner.policy_version == version:
        # The learner answered a moment ago; if it has died since, the next try replaces it.
        engines = await session.keeper.ask(session.resolved_model)
        return await session.keeper.serve(version, engines, learner), learner
    return await ready(session, version)


async def ready(session: Session, version: int) -> tuple[EngineRef, LearnerRef]:
    """Engines that serve a version and a learner that holds it. Dead ones are replaced; living ones are asked."""
    engines, learner = await _both(session, session.resolved_model, learner_at(session, version))
    return await session.keeper.serve(version, engines, learner), learner


async def _both(
    session: Session, model: ModelRef, learner: Coroutine[Any, Any, LearnerRef]
) -> tuple[EngineRef, LearnerRef]:
    """Engines and learner, started or found at the same time; one after the other where they share GPUs.

    vLLM measures what memory is free when it starts, and nobody else must take or give any meanwhile.
    """
    if session.keeper.takes_turns:
        with closing(learner):
            return await session.keeper.ask(model), await learner
    async with asyncio.TaskGroup() as group:
        asked, held = group.create_task(session.keeper.ask(model)), group.create_task(learner)
    return asked.result(), held.result()


async def living_engines(session: Session, engines: EngineRef) -> EngineRef:
    """The engines of a task: as they are at its first try; at a later one, found or replaced, and with its version."""
    if _first_try():
        return engines
    if not session.trains:
        return await session.keeper.ask(session.resolved_model)
    if (revived := await session.keeper.revived(session.resolved_model)) is not None:
        return revived
    async with session.learning:  # an update may be under way
        return (await ready(session, session.version))[0]


async def living_learner(session: Session, version: int, learner: LearnerRef) -> LearnerRef:
    """The learner of a task: as it is at its first try; at a later one, found or replaced, and at its version."""
    return learner if _first_try() else await learner_at(session, version)


def _first_try() -> bool:
    """This task run is not a retry."""
    return (task_run.run_count or 1) == 1


async def learner_at(session: Session, version: int) -> LearnerRef:
    """The learner, holding a version.

    Raises `LearnerError` if the checkpoint is ahead of the version, `ShardError` if a step on the way is not stored.
    """
    ref = await _learner(session, session.resolved_model)
    if ref.policy_version > version:
        logger.warning(
            "the learner holds version %d, of which nothing is recorded; it starts again from the newest checkpoint",
            ref.policy_version,
        )
        Learner(ref, session.config.learner).close()
        ref = await _learner(session, session.resolved_model)
    if ref.policy_version > version:
        raise LearnerError(
            f"the newest checkpoint holds version {ref.policy_version}, but the update that made it is not recorded in "
            f"{session.directory.path / 'steps'}; restore that folder, or remove the checkpoint to use an older one"
        )
    if ref.policy_version == version:
        return ref
    learner = Learner(ref, session.config.learner)
    await session.keeper.rest()
    with (
        session.times.outside(),
        session.display.stage(f"replay {ref.policy_version}-{version - 1}", total=version - ref.policy_version) as bar,
    ):
        for done, step in enumerate(range(ref.policy_version, version), start=1):
            directory = session.directory.step(step)
            stored = StepReport.model_validate(await asyncio.to_thread(read_json, directory.update_file))
            replayed = await learner.update(directory.path, step)
            if replayed.weights_digest != stored.weights_digest:
                logger.warning("step %d: training again on the stored rollouts gave other weights than before", step)
                session.tracker.log_metrics(step, {"train/replay_mismatch/count": 1.0})
            bar.update(completed=done)
    return ref.model_copy(update={"policy_version": version})


def _end_with(session: Session) -> None:
    """On a shared cluster actors outlive a killed driver, to be found again; they do not outlive a run that ends."""

    async def end() -> None:
        await asyncio.to_thread(end_actors, session.namespace)

    if not session.ends_actors:
        session.ends_actors = True
        session.closing.push_async_callback(end)


async def _learner(session: Session, model: ModelRef) -> LearnerRef:
    # What is being written now, by ranks that may have outlived a killed driver, looks like what a killed writer left.
    tidy = session.saving is None and not ranks_alive(session.config.run.name, session.namespace)
    checkpoint = await asyncio.to_thread(newest_checkpoint, session.directory.checkpoints, tidy=tidy)
    return await ensure_learner(
        session.config, model, checkpoint, run_name=session.config.run.name, namespace=session.namespace
    )
