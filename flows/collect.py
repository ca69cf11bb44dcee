"""The collection flow: rollouts of one policy into scored shards, without training."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from agentfly_lib.configs.load import FlowConfig
from agentfly_lib.pipeline.policy import policy_config
from agentfly_lib.refs import ShardsRef
from agentfly_lib.together import both
from tasks.collect import collect as collect_step
from tasks.data import check, prepare, resolve
from tasks.score import score
from tasks.session import open_session
from tasks.workers import start_engines

__all__ = ["collect"]


@flow(name="collect", flow_run_name="collect-{config.run.name}", persist_result=False)
async def collect(config: FlowConfig, checkpoint: Path | None = None, steps: int = 1) -> list[ShardsRef]:
    """Collects and scores `steps` steps' worth of problems, in a run directory of its own."""
    config = policy_config(config, checkpoint, suffix="collect")
    async with open_session(config, trains=False):
        dataset, model = await prepare(config.data, config.run.root), await resolve(config.model)
        await check(dataset, model)
        engines = await start_engines(model)
        collected: list[ShardsRef] = []
        for step in range(steps):
            shards, _ = await both(collect_step(step, dataset, engines), score(step))
            collected.append(shards)
        return collected
