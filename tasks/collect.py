"""Collect the rollouts of one step into shards."""

from __future__ import annotations

from prefect import task

from agentfly_lib.pipeline import collection, limits
from agentfly_lib.pipeline.limits import within
from agentfly_lib.refs import DatasetRef, EngineRef, ShardsRef
from tasks.options import RETRIED, is_retry
from tasks.session import current_session

__all__ = ["collect"]


@task(name="collect", task_run_name="collect-{step:06d}", **RETRIED)
async def collect(step: int, dataset: DatasetRef, engines: EngineRef) -> ShardsRef:
    """N problems times G chains with the policy that the engines serve; groups that are stored are not made again."""
    session = current_session()
    async with within(limits.collect(session.config), f"collect {step}"):
        return await collection.collect(session, step, dataset, engines, again=is_retry())
