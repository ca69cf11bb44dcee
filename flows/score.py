"""The rescoring flow: another reward over the stored rollouts of a finished run; nothing is generated again."""

from __future__ import annotations

from prefect import flow

from agentfly_lib.configs import RewardConfig
from agentfly_lib.configs.load import FlowConfig
from agentfly_lib.refs import ScoresRef
from tasks.score import rescore
from tasks.session import open_session

__all__ = ["score"]


@flow(name="score", flow_run_name="score-{config.run.name}", persist_result=False)
async def score(config: FlowConfig, reward: RewardConfig) -> list[ScoresRef]:
    """Scores every stored step of the run with `reward`; the scores it had are kept beside the new ones."""
    async with open_session(config, trains=False) as session:
        return [await rescore(step, reward) for step in session.schedule.finished_steps()]
