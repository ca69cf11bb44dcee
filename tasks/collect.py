"""Collect the rollouts of one step into shards."""

from __future__ import annotations

import asyncio

from prefect import task

from agentfly_lib.data.order import problems_of_step
from agentfly_lib.inference.actor import RayGenerate
from agentfly_lib.refs import DatasetRef, EngineRef, ShardsRef
from agentfly_lib.resources import ResourceEngine
from agentfly_lib.rollout import CollectProgress, RolloutSeeds
from agentfly_lib.rollout import collect as collect_groups
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.types import Problem
from tasks.options import RETRIED, within
from tasks.session import Session, current_session
from tasks.workers import living_engines

__all__ = ["collect", "group_id"]


@task(name="collect", task_run_name="collect-{step:06d}", **RETRIED)
async def collect(step: int, dataset: DatasetRef, engines: EngineRef) -> ShardsRef:
    """N problems times G chains with the policy that the engines serve; groups that are stored are not made again."""
    session = current_session()
    async with within(session.config.rollout.stage_timeout_seconds + session.start_seconds, f"collect {step}"):
        return await _collect(session, step, dataset, engines)


async def _collect(session: Session, step: int, dataset: DatasetRef, engines: EngineRef) -> ShardsRef:
    config, directory = session.config, session.directory.step(step)
    problems = await asyncio.to_thread(_problems, session, dataset, step)
    store = await asyncio.to_thread(
        RolloutStore.open,
        directory,
        step=step,
        policy_version=engines.policy_version,
        group_ids=[identity for identity, _ in problems],
        chains=config.rollout.chains,
    )
    if not store.complete:
        engines = await living_engines(session, engines)
        with session.display.stage(f"collect-{step:06d}", total=store.manifest.requested) as bar:

            def progress(now: CollectProgress) -> None:
                bar.update(
                    completed=now.chains_done, total=now.chains, note=f"{now.failures} failed" * bool(now.failures)
                )

            async with ResourceEngine(run=config.run.name) as resources:
                collected = await collect_groups(
                    session.agent,
                    RayGenerate(engines),
                    problems,
                    store,
                    config=config.rollout,
                    seeds=RolloutSeeds(run_seed=config.run.seed, step=step),
                    resources=resources,
                    on_progress=progress,
                )
        session.times.collected(step, collected)
    manifest = store.manifest
    return ShardsRef(
        path=directory.path,
        step=step,
        policy_version=manifest.policy_version,
        complete=manifest.complete,
        parts=len(manifest.parts),
        trajectories=manifest.trajectories,
    )


def group_id(step: int, index: int) -> str:
    """`000012-00003`: sorts as the problems of the step are ordered."""
    return f"{step:06d}-{index:05d}"


def _problems(session: Session, dataset: DatasetRef, step: int) -> list[tuple[str, Problem]]:
    rows = problems_of_step(dataset.train_rows, session.config.rollout.problems_per_step, step, session.config.run.seed)
    train = session.problems(dataset, "train")
    return [(group_id(step, index), train[row]) for index, row in enumerate(rows)]
