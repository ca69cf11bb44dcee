"""The training flow: prepare, then per step collect, score and update, with checkpoints and evaluations in between.

A version is the number of updates that made a policy: version 0 is the starting model, and update k makes version k + 1
of what step k collected. Step k collects with version k, or, where `rollout.max_policy_lag` is L, with the versions
k - L .. k: its collection then goes on beside the updates before. Every stage leaves its result in the run directory
and returns it at once when it is already there, so the same flow started again after any kill goes on where it was.
"""

from __future__ import annotations

from functools import partial

from prefect import flow

from agentfly_lib.configs.load import FlowConfig
from agentfly_lib.pipeline.lookahead import Lookahead
from agentfly_lib.pipeline.report import TrainReport
from agentfly_lib.refs import DatasetRef, EngineRef, ScoresRef, ShardsRef
from agentfly_lib.together import both
from tasks.collect import collect
from tasks.data import check, prepare, resolve
from tasks.evaluate import evaluate
from tasks.record import catch_up, record_step
from tasks.report import report
from tasks.score import score
from tasks.session import open_session
from tasks.update import checkpoint, update
from tasks.workers import start_workers, sync

__all__ = ["train"]


@flow(name="train", flow_run_name="train-{config.run.name}", persist_result=False)
async def train(config: FlowConfig) -> TrainReport:
    """Trains an agent as the recipe says, and resumes when its run directory already exists."""
    async with open_session(config) as session:
        dataset, model = await prepare(config.data, config.run.root), await resolve(config.model)
        await check(dataset, model)
        await catch_up()
        if not session.schedule.finished():
            engines, learner = await start_workers(model)
            async with Lookahead(lag=config.rollout.max_policy_lag, steps=config.run.steps) as ahead:
                for version in range(session.schedule.first_open_step(), config.run.steps + 1):
                    engines, learner = await sync(version, engines, learner)
                    ahead.serving(version, partial(rollouts, dataset=dataset, engines=engines))
                    if session.schedule.checkpoint_due(version):
                        await checkpoint(version, learner)
                    if session.schedule.evaluation_due(version):
                        await evaluate(version, dataset, engines)
                    if version == config.run.steps:
                        break
                    shards, scores = await ahead.rollouts(version)
                    updated, learner = await update(version, learner)
                    await record_step(shards, scores, updated)
        return await report()


async def rollouts(step: int, *, dataset: DatasetRef, engines: EngineRef) -> tuple[ShardsRef, ScoresRef]:
    """Collects a step, and scores it as its parts land."""
    return await both(collect(step, dataset, engines), score(step))
