"""The long-lived parts: inference engines and learner ranks. Here they are found, revived and synchronised.

A learner that had to be replaced starts from the newest checkpoint and is brought up to the version that is needed by
training again on the stored rollouts; an engine that had to be replaced is given the learner's weights. An engine that
says it serves the version already, because it was found, proves it by a canary, and is given the weights if it cannot.

Whatever a stage was handed is taken as it is at its first try; when it is tried `again`, nothing is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import closing
from typing import Any

from agentfly_lib.errors import LearnerError
from agentfly_lib.pipeline.session import Session
from agentfly_lib.ray_calls import ray_call
from agentfly_lib.refs import EngineRef, LearnerRef
from agentfly_lib.store.recorded import read_update
from agentfly_lib.training.checkpoint import newest_checkpoint
from agentfly_lib.training.ranks import Learner, ensure_learner, ranks_alive

__all__ = [
    "learner_at",
    "learner_to_save",
    "living_engines",
    "living_learner",
    "ready",
    "start_engines",
    "start_learner",
    "start_workers",
    "sync",
]

logger = logging.getLogger(__name__)


async def start_workers(session: Session) -> tuple[EngineRef, LearnerRef]:
    """Starts Ray, then engines and learner at the same time, or finds those that are running."""
    with session.display.stage("start engine and learner"):
        await session.cluster.start_for_actors()
        return await _both(session, _learner(session))


async def start_engines(session: Session) -> EngineRef:
    """Starts Ray and the engines alone, for flows that do not train."""
    with session.display.stage("start engine"):
        await session.cluster.start_for_actors()
        return await session.keeper.ask()


async def start_learner(session: Session, version: int) -> LearnerRef:
    """Starts Ray and the learner alone, for flows that generate nothing, and brings it to a version."""
    with session.display.stage("start learner"):
        await session.cluster.start_for_actors()
        return await learner_at(session, version)


async def sync(
    session: Session, version: int, engines: EngineRef, learner: LearnerRef, *, again: bool
) -> tuple[EngineRef, LearnerRef]:
    """The step of this version begins: learner and engines hold it afterwards, proven by a canary."""
    session.times.begin(version)
    async with session.learning.turn() as turn:
        turn.holds(version)
        with session.display.stage(f"sync-{version:06d}"):
            if again or learner.policy_version != version:
                return await ready(session, version)
            # The learner answered a moment ago; if it has died since, the next try replaces it.
            engines = await session.keeper.ask()
            return await session.keeper.serve(version, engines, learner), learner


async def ready(session: Session, version: int) -> tuple[EngineRef, LearnerRef]:
    """Engines that serve a version and a learner that holds it. Dead ones are replaced; living ones are asked."""
    engines, learner = await _both(session, learner_at(session, version))
    return await session.keeper.serve(version, engines, learner), learner


async def _both(session: Session, learner: Coroutine[Any, Any, LearnerRef]) -> tuple[EngineRef, LearnerRef]:
    """Engines and learner, started or found at the same time; one after the other where they share GPUs.

    vLLM measures what memory is free when it starts, and nobody else must take or give any meanwhile.
    """
    if await session.keeper.takes_turns():
        with closing(learner):
            return await session.keeper.ask(), await learner
    async with asyncio.TaskGroup() as group:
        asked, held = group.create_task(session.keeper.ask()), group.create_task(learner)
    return asked.result(), held.result()


async def living_engines(session: Session, engines: EngineRef, *, again: bool) -> EngineRef:
    """The engines of a stage; when it is tried again, found or replaced, and with the version that they served."""
    if not again:
        return engines
    if not session.trains:
        return await session.keeper.ask()
    if (revived := await session.keeper.revived()) is not None:
        return revived
    async with session.learning.turn():  # an update may be under way
        return (await ready(session, session.learning.version))[0]


async def living_learner(session: Session, version: int, learner: LearnerRef, *, again: bool) -> LearnerRef:
    """The learner of a stage; when it is tried again, found or replaced, and at this version."""
    return await learner_at(session, version) if again else learner


async def learner_to_save(session: Session, version: int, learner: LearnerRef, *, again: bool) -> LearnerRef:
    """As `living_learner`; engines that slept while it was brought to the version serve again."""
    learner = await living_learner(session, version, learner, again=again)
    if again and session.keeper.resting:
        await session.keeper.serve(version, await session.keeper.ask(), learner)
    return learner


async def learner_at(session: Session, version: int) -> LearnerRef:
    """The learner, holding a version.

    Raises `LearnerError` if the checkpoint is ahead of the version, `ShardError` if a step on the way is not stored.
    """
    ref = await _learner(session)
    if ref.policy_version > version:
        logger.warning(
            "the learner holds version %d, of which nothing is recorded; it starts again from the newest checkpoint",
            ref.policy_version,
        )
        await ray_call(Learner(ref, session.config.learner).close)
        ref = await _learner(session)
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
            stored = await asyncio.to_thread(read_update, directory)
            replayed = await learner.update(directory.path, step)
            if replayed.weights_digest != stored.weights_digest:
                logger.warning("step %d: training again on the stored rollouts gave other weights than before", step)
                session.tracker.log_metrics(step, {"train/replay_mismatch/count": 1.0})
            bar.update(completed=done)
    return ref.model_copy(update={"policy_version": version})


async def _learner(session: Session) -> LearnerRef:
    # What is being written now, by ranks that may have outlived a killed driver, looks like what a killed writer left.
    name, namespace = session.config.run.name, session.namespace
    tidy = session.learning.saving is None and not await ray_call(ranks_alive, name, namespace)
    checkpoint = await asyncio.to_thread(newest_checkpoint, session.directory.checkpoints, tidy=tidy)
    return await ensure_learner(session.config, session.model, checkpoint, run_name=name, namespace=namespace)
