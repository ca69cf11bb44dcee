"""Collect the rollouts of one step into shards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Protocol

from agentfly_lib.configs import SignalSamplingConfig
from agentfly_lib.pipeline import limits
from agentfly_lib.pipeline.problems import outcome_part, problems_in_order
from agentfly_lib.pipeline.session import Session
from agentfly_lib.pipeline.workers import living_engines
from agentfly_lib.refs import DatasetRef, EngineRef, ShardsRef
from agentfly_lib.rollout import Collected, CollectProgress, RolloutSeeds, collect_with_signal
from agentfly_lib.rollout import collect as collect_groups
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.types import Problem

__all__ = ["collect"]


async def collect(session: Session, step: int, dataset: DatasetRef, engines: EngineRef, *, again: bool) -> ShardsRef:
    """N problems times G chains with the policy that the engines serve; groups that are stored are not made again."""
    config, directory = session.config, session.directory.step(step)
    async with session.line.place(step):
        problems = await asyncio.to_thread(problems_in_order, session, dataset, step)
        store = await asyncio.to_thread(
            RolloutStore.open,
            directory,
            step=step,
            policy_version=engines.policy_version,
            oldest_version=max(step - config.rollout.max_policy_lag, 0),
            group_ids=[identity for identity, _ in problems[: config.rollout.problems_per_step]],
            chains=config.rollout.chains,
        )
        if not store.complete:
            engines = await living_engines(session, engines, again=again)
            await session.slots.turn(step)  # the step's time begins when those before it leave it room
    if not store.complete:
        with (
            session.times.activity.collecting(),
            session.display.stage(f"collect-{step:06d}", total=store.manifest.requested) as bar,
        ):

            def progress(now: CollectProgress) -> None:
                failed = f"{now.failures} failed" * bool(now.failures)
                bar.update(completed=now.chains_done, total=now.chains, note=failed, facts=asdict(now))

            async def once(asked: Sequence[tuple[str, Problem]], seconds: float, *, finish: bool) -> Collected:
                return await collect_groups(
                    session.agent,
                    await session.keeper.client(engines),
                    asked,
                    store,
                    config=config.rollout.model_copy(update={"stage_timeout_seconds": seconds}),
                    seeds=RolloutSeeds(run_seed=config.run.seed, step=step),
                    finish=finish,
                    resources=session.borrowing.engine,
                    slots=session.slots,
                    rank=step,
                    activity=session.times.activity,
                    on_progress=progress,
                )

            before = session.borrowing.engine.metrics()
            collected = await _all_rounds(session, directory, store, problems, once)
            counted = session.borrowing.since(before)
        session.times.collected(step, replace(collected, resources=counted))
    manifest = store.manifest
    return ShardsRef(
        path=directory.path,
        step=step,
        policy_version=manifest.policy_version,
        complete=manifest.complete,
        parts=len(manifest.parts),
        trajectories=manifest.trajectories,
    )


class _Round(Protocol):
    async def __call__(self, asked: Sequence[tuple[str, Problem]], seconds: float, *, finish: bool) -> Collected: ...


async def _all_rounds(
    session: Session,
    directory: StepDirectory,
    store: RolloutStore,
    problems: Sequence[tuple[str, Problem]],
    once: _Round,
) -> Collected:
    """The step's problems, and those that take the place of groups without a signal if the config asks for it."""
    rollout = session.config.rollout
    if not isinstance(rollout.dynamic_sampling, SignalSamplingConfig):
        return await once(problems[: rollout.problems_per_step], limits.collection(session.config).seconds, finish=True)
    collected, report = await collect_with_signal(
        store,
        directory,
        problems,
        wanted=rollout.problems_per_step,
        config=rollout.dynamic_sampling,
        outcome=rollout.dynamic_sampling.outcome or outcome_part(session.agent.reward),
        collect_round=partial(once, finish=False),
        seconds=limits.collection(session.config).seconds,
    )
    session.times.note(report.metrics, store.manifest.step)
    return collected
