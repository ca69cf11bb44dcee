"""The replay flow: the updates of a run made again from its stored rollouts; nothing is generated, nothing changed."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from agentfly_lib.configs.load import FlowConfig
from agentfly_lib.pipeline.replay import ReplayReport
from agentfly_lib.preflight import replay_range
from tasks.data import resolve
from tasks.replay import replay as replay_steps
from tasks.session import open_session

__all__ = ["replay"]


@flow(name="replay", flow_run_name="replay-{config.run.name}", persist_result=False)
async def replay(
    config: FlowConfig, from_step: int = 0, to_step: int | None = None, output: Path | None = None
) -> ReplayReport:
    """Trains again from step `from_step` to `to_step` (the last stored one if None), and compares the weights.

    `output` is where the checkpoint of the last version goes, if it is wanted.
    """
    first, last = replay_range(config, from_step, to_step)
    async with open_session(config):
        return await replay_steps(await resolve(config.model), first, last, output)
