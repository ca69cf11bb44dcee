"""Start the long-lived parts, inference engines and learner ranks, and bring them to the same version."""

from __future__ import annotations

from prefect import task

from agentfly_lib.pipeline import limits, workers
from agentfly_lib.pipeline.limits import within
from agentfly_lib.refs import EngineRef, LearnerRef, ModelRef
from tasks.options import RETRIED, is_retry
from tasks.session import current_session

__all__ = ["start_engines", "start_learner", "start_workers", "sync"]


@task(name="start", **RETRIED)
async def start_workers(_: ModelRef) -> tuple[EngineRef, LearnerRef]:
    """Starts Ray, then engines and learner at the same time, or finds those that are running."""
    session = current_session()
    async with within(limits.start_workers(session.config), "the start of engine and learner"):
        return await workers.start_workers(session)


@task(name="start-engines", **RETRIED)
async def start_engines(_: ModelRef) -> EngineRef:
    """Starts Ray and the engines alone, for flows that do not train."""
    session = current_session()
    async with within(limits.start_engines(session.config), "the start of the engine"):
        return await workers.start_engines(session)


@task(name="start-learner", **RETRIED)
async def start_learner(_: ModelRef, version: int) -> LearnerRef:
    """Starts Ray and the learner alone, and brings it to a version, for flows that generate nothing."""
    session = current_session()
    limit = limits.start_learner(session.config, session.schedule.since_checkpoint(version))
    async with within(limit, "the start of the learner"):
        return await workers.start_learner(session, version)


@task(name="sync", task_run_name="sync-{version:06d}", **RETRIED)
async def sync(version: int, engines: EngineRef, learner: LearnerRef) -> tuple[EngineRef, LearnerRef]:
    """Learner and engines hold this version of the policy afterwards, proven by a canary."""
    session = current_session()
    limit = limits.sync(session.config, session.schedule.since_checkpoint(version))
    async with within(limit, f"sync {version}"):
        return await workers.sync(session, version, engines, learner, again=is_retry())
