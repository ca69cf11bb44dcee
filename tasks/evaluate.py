"""Evaluate one policy version on the held-out problems, sampled and greedy."""

from __future__ import annotations

from prefect import task

from agentfly_lib.pipeline import evaluation, limits
from agentfly_lib.pipeline.limits import within
from agentfly_lib.refs import DatasetRef, EngineRef, EvaluationRef
from tasks.options import RETRIED, is_retry
from tasks.session import current_page, current_session

__all__ = ["evaluate"]


@task(name="evaluate", task_run_name="evaluate-{version:06d}", **RETRIED)
async def evaluate(version: int, dataset: DatasetRef, engines: EngineRef) -> EvaluationRef:
    """Mean reward and pass@k with intervals; greedy reward beside it if the config asks for it."""
    session, page = current_session(), current_page()
    async with within(limits.evaluate(session.config), f"evaluate {version}"):
        evaluated = await evaluation.evaluate(session, version, dataset, engines, again=is_retry())
        session.background.start(page.evaluations(evaluated.table))
        return await evaluation.close_evaluation(session, version, evaluated.metrics)
