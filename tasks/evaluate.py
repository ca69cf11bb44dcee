"""Evaluate one policy version on the held-out problems, sampled and greedy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from prefect import task

from agentfly_lib.configs import RolloutConfig
from agentfly_lib.evaluation.evaluate import evaluate_groups
from agentfly_lib.evaluation.report import EvaluationMode, EvaluationReport, read_report, write_report
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import DatasetRef, EngineRef, EvaluationRef
from agentfly_lib.rollout import RolloutSeeds
from agentfly_lib.rollout import collect as collect_groups
from agentfly_lib.store.atomic import write_json
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.types import Problem
from tasks.options import RETRIED, within
from tasks.report import publish_evaluations
from tasks.score import score_directory
from tasks.session import current_session
from tasks.workers import living_engines

__all__ = ["evaluate", "evaluate_mode"]

_EVALUATION_STEP = -1
"""Step number that seeds evaluations: every version is asked the same way, and no training step shares it.

As the lowest number it also has the first choice of slots, because the next update waits for the evaluation."""


@task(name="evaluate", task_run_name="evaluate-{version:06d}", **RETRIED)
async def evaluate(version: int, dataset: DatasetRef, engines: EngineRef) -> EvaluationRef:
    """Mean reward and pass@k with intervals; greedy reward beside it if the config asks for it."""
    session = current_session()
    limit = 4 * session.config.rollout.stage_timeout_seconds + session.start_seconds + session.queue_seconds
    async with within(limit, f"evaluate {version}"):
        metrics: dict[str, float] = {}
        with session.times.outside():
            for mode in session.evaluation_modes:
                metrics |= (await evaluate_mode(session, version, dataset, engines, mode)).metrics
            session.tracker.log_metrics(version, metrics)
            await publish_evaluations(session)
            # Written last: an evaluation without it is looked at again, so that its numbers are sent.
            await asyncio.to_thread(write_json, session.directory.evaluation_metrics(version), metrics)
        session.display.row(f"v{version}", metrics)
        return EvaluationRef(
            path=session.directory.evaluation_metrics(version).parent, policy_version=version, metrics=metrics
        )


async def evaluate_mode(
    session: Session, version: int, dataset: DatasetRef, engines: EngineRef, mode: EvaluationMode
) -> EvaluationReport:
    """One evaluation in one mode; read from disk if it was done before."""
    config, directory = session.config, session.directory.evaluation(version, mode)
    if directory.report_file.exists():
        return await asyncio.to_thread(read_report, directory.report_file)
    problems = await asyncio.to_thread(_held_out, session, dataset)
    samples = 1 if mode == "greedy" else config.evaluation.samples
    store = await asyncio.to_thread(
        RolloutStore.open,
        directory,
        step=version,
        policy_version=version,
        group_ids=[identity for identity, _ in problems],
        chains=samples,
    )
    with session.display.stage(f"evaluate-{version:06d} {mode}", total=len(problems) * samples) as bar:
        if not store.complete:
            engines = await living_engines(session, engines)
            await session.slots.turn(_EVALUATION_STEP)
            await collect_groups(
                session.agent,
                session.keeper.client(engines),
                problems,
                store,
                config=_rollout_config(session, samples),
                seeds=RolloutSeeds(run_seed=config.run.seed, step=_EVALUATION_STEP),
                greedy=mode == "greedy",
                resources=session.resources,
                slots=session.slots,
                rank=_EVALUATION_STEP,
                on_progress=lambda now: bar.update(completed=now.chains_done, total=now.chains, facts=asdict(now)),
            )
        scored = await score_directory(session, directory, bar)
    report = evaluate_groups(
        scored.groups,
        policy_version=version,
        mode=mode,
        reward_name=scored.manifest.reward,
        samples=samples,
        dropped_groups=len(store.manifest.dropped_groups),
        seed=config.run.seed,
    )
    await asyncio.to_thread(write_report, directory.report_file, report)
    return report


def _held_out(session: Session, dataset: DatasetRef) -> Sequence[tuple[str, Problem]]:
    held_out = session.problems(dataset, "eval")
    return [(f"eval-{index:05d}", problem) for index, problem in enumerate(held_out)]


def _rollout_config(session: Session, samples: int) -> RolloutConfig:
    evaluation = session.config.evaluation
    return session.config.rollout.model_copy(update={"chains": samples, "sampling": evaluation.sampling})
