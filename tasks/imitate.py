"""Choose the trajectories that fine-tuning imitates, and lay out each step's share."""

from __future__ import annotations

from prefect import task

from agentfly_lib.pipeline import imitation
from agentfly_lib.pipeline.imitation import Imitated
from agentfly_lib.refs import ModelRef
from tasks.options import RETRIED
from tasks.session import current_session

__all__ = ["choose", "lay_out"]


@task(name="choose", **RETRIED)
async def choose(_: ModelRef) -> Imitated:
    """The trajectories that the config accepts, read from the shards of its runs."""
    return await imitation.choose(current_session())


@task(name="lay-out", task_run_name="lay-out-{step:06d}", **RETRIED)
async def lay_out(step: int, imitated: Imitated) -> None:
    """The step's share of the trajectories, as collected and scored rollouts."""
    await imitation.lay_out_step(current_session(), step, imitated)
