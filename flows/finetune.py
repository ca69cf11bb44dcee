"""The fine-tuning flow: a policy imitates stored trajectories, all of them or those that were good enough.

The same learner, checkpoints and resume as in training; there is no engine, because nothing is generated.
"""

from __future__ import annotations

from prefect import flow

from agentfly_lib.configs.load import FlowConfig
from tasks.data import resolve
from tasks.imitate import FinetuneReport, choose, finetune_report, imitate_step, record, start
from tasks.session import open_session
from tasks.update import checkpoint, update

__all__ = ["finetune"]


@flow(name="finetune", flow_run_name="finetune-{config.run.name}", persist_result=False)
async def finetune(config: FlowConfig) -> FinetuneReport:
    """Fine-tunes on the trajectories of earlier runs, and resumes when its run directory already exists."""
    async with open_session(config) as session:
        model = await resolve(config.model)
        members = await choose(model)
        version, last = session.first_open_step(), config.run.steps
        if version < last or session.checkpoint_due(last):
            learner = await start(model, version)
            for step in range(version, last + 1):
                if session.checkpoint_due(step):
                    await checkpoint(step, learner)
                if step == last:
                    break
                await imitate_step(step, members)
                updated, learner = await update(step, learner)
                await record(updated)
        return finetune_report(session, members)
