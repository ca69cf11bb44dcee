"""Evaluate one policy version on the held-out problems, sampled and greedy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from agentfly_lib.configs import RolloutConfig
from agentfly_lib.evaluation.evaluate import evaluate_groups
from agentfly_lib.evaluation.report import EvaluationMode, EvaluationReport, read_report, write_report
from agentfly_lib.evaluation.table import report_table
from agentfly_lib.pipeline.scoring import score_directory
from agentfly_lib.pipeline.session import Session
from agentfly_lib.pipeline.workers import living_engines
from agentfly_lib.refs import DatasetRef, EngineRef, EvaluationRef
from agentfly_lib.rollout import RolloutSeeds
from agentfly_lib.rollout import collect as collect_groups
from agentfly_lib.store.atomic import write_json
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.types import Problem

__all__ = ["Evaluated", "close_evaluation", "evaluate", "evaluation_reports"]

_EVALUATION_STEP = -1
"""Step number that seeds evaluations: every version is asked the same way, and no training step shares it.

As the lowest number it also has the first choice of slots, because the next update waits for the evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A policy version, evaluated."""

    metrics: dict[str, float]
    table: list[dict[str, str]]
    """Of all evaluations so far."""


async def evaluate(
    session: Session, version: int, dataset: DatasetRef, engines: EngineRef, *, again: bool
) -> Evaluated:
    """Mean reward and pass@k with intervals; greedy reward beside it if the config asks for it."""
    metrics: dict[str, float] = {}
    with session.times.outside():
        for mode in session.schedule.evaluation_modes:
            metrics |= (await _evaluate_mode(session, version, dataset, engines, mode, again=again)).metrics
        session.tracker.log_metrics(version, metrics)
        table = report_table(await asyncio.to_thread(evaluation_reports, session))
        session.tracker.log_table("evaluations", table)
    return Evaluated(metrics=metrics, table=table)


async def close_evaluation(session: Session, version: int, metrics: dict[str, float]) -> EvaluationRef:
    """Records that an evaluation was sent and shown: one that is not closed is looked at again, so that it is."""
    file = session.directory.evaluation_metrics(version)
    with session.times.outside():
        await asyncio.to_thread(write_json, file, metrics)
    session.display.row(f"v{version}", metrics)
    return EvaluationRef(path=file.parent, policy_version=version, metrics=metrics)


def evaluation_reports(session: Session) -> list[EvaluationReport]:
    """All that were made so far."""
    files = [
        session.directory.evaluation(version, mode).report_file
        for version in session.directory.evaluations()
        for mode in session.schedule.evaluation_modes
    ]
    return [read_report(file) for file in files if file.exists()]


async def _evaluate_mode(
    session: Session, version: int, dataset: DatasetRef, engines: EngineRef, mode: EvaluationMode, *, again: bool
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
            engines = await living_engines(session, engines, again=again)
            await session.slots.turn(_EVALUATION_STEP)
            await collect_groups(
                session.agent,
                await session.keeper.client(engines),
                problems,
                store,
                config=_rollout_config(session, samples),
                seeds=RolloutSeeds(run_seed=config.run.seed, step=_EVALUATION_STEP),
                greedy=mode == "greedy",
                resources=session.borrowing.engine,
                slots=session.slots,
                rank=_EVALUATION_STEP,
                on_progress=lambda now: bar.update(completed=now.chains_done, total=now.chains, facts=asdict(now)),
            )
        scored = await score_directory(session, directory, bar)
    report = evaluate_groups(
        scored.groups,
        policy_version=version,
        mode=mode,
        reward_name=config.agent.reward.identity,
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
