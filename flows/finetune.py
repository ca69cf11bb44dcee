"""The fine-tuning flow: a policy imitates stored trajectories, all of them or those that were good enough.

The same learner, checkpoints and resume as in training; there is no engine, because nothing is generated.
"""

from __future__ import annotations

from prefect import flow

from agentfly_lib.configs.load import FlowConfig
from agentfly_lib.pipeline.imitation import FinetuneReport, finetune_report
from tasks.data import resolve
from tasks.imitate import choose, lay_out
from tasks.record import catch_up, record_update
from tasks.session import open_session
from tasks.update import checkpoint, update
from tasks.workers import start_learner

__all__ = ["finetune"]


@flow(name="finetune", flow_run_name="finetune-{config.run.name}", persist_result=False)
async def finetune(config: FlowConfig) -> FinetuneReport:
    """Fine-tunes on the trajectories of earlier runs, and resumes when its run directory already exists."""
    async with open_session(config) as session:
        model = await resolve(config.model)
        imitated = await choose(model)
        await catch_up()
        version, last = session.schedule.first_open_step(), config.run.steps
        if version < last or session.schedule.checkpoint_due(last):
            learner = await start_learner(model, version)
            for step in range(version, last + 1):
                if session.schedule.checkpoint_due(step):
                    await checkpoint(step, learner)
                if step == last:
                    break
                await lay_out(step, imitated)
                updated, learner = await update(step, learner)
                await record_update(updated)
        return finetune_report(session, imitated)
