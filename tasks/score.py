"""Score the shards of one step as they land, or those of a finished run with another reward."""

from __future__ import annotations

from prefect import task

from agentfly_lib.configs import RewardConfig
from agentfly_lib.pipeline import limits, scoring
from agentfly_lib.pipeline.limits import within
from agentfly_lib.refs import ScoresRef
from tasks.options import RETRIED
from tasks.session import current_session

__all__ = ["rescore", "score"]


@task(name="score", task_run_name="score-{step:06d}", **RETRIED)
async def score(step: int) -> ScoresRef:
    """Rewards beside the shards, started when the first part lands and ended after the last one."""
    session = current_session()
    async with within(limits.score(session.config), f"score {step}"):
        return await scoring.score(session, step)


@task(name="rescore", task_run_name="rescore-{step:06d}", **RETRIED)
async def rescore(step: int, reward: RewardConfig) -> ScoresRef:
    """Another reward over the stored rollouts of a step."""
    session = current_session()
    async with within(limits.rescore(session.config), f"rescore {step}"):
        return await scoring.rescore(session, step, reward)
