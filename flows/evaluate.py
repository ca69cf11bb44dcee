"""The evaluation flow: one policy on the held-out problems of a recipe."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from agentfly_lib.configs import RunConfig
from agentfly_lib.configs.load import FlowConfig
from agentfly_lib.pipeline.policy import policy_config, recorded_recipe
from agentfly_lib.pipeline.report import EvaluateReport
from tasks.data import check, prepare, resolve
from tasks.evaluate import evaluate as evaluate_policy
from tasks.report import report_evaluation
from tasks.session import open_session
from tasks.workers import start_engines

__all__ = ["evaluate", "evaluate_saved"]


@flow(name="evaluate", flow_run_name="evaluate-{config.run.name}", persist_result=False)
async def evaluate(config: FlowConfig, checkpoint: Path) -> EvaluateReport:
    """Evaluates a checkpoint, a run's newest checkpoint or a model directory, in a run directory of its own."""
    return await _evaluated(config, checkpoint)


@flow(name="evaluate", flow_run_name="evaluate-{checkpoint}", persist_result=False)
async def evaluate_saved(checkpoint: Path, root: Path = Path("runs")) -> EvaluateReport:
    """Evaluates a checkpoint of a run in `root` with the recipe that the run has written down.

    For automations: anybody who reaches Prefect's server can tell it an event, and must not name a recipe by it.
    """
    return await _evaluated(recorded_recipe(checkpoint, root), checkpoint)


async def _evaluated(config: RunConfig, checkpoint: Path) -> EvaluateReport:
    config = policy_config(config, checkpoint, suffix="evaluate")
    async with open_session(config, trains=False):
        dataset, model = await prepare(config.data, config.run.root), await resolve(config.model)
        await check(dataset, model)
        engines = await start_engines(model)
        await evaluate_policy(0, dataset, engines)
        return await report_evaluation(str(checkpoint))
