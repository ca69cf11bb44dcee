"""Collections beside updates, with tools whose delays have a long tail: lag 0, 1 and 2, the same work for each.

The demo's model is trained for real; its calculator sleeps for a log-normal time (median 0.4 s, sigma 1.2) that is
drawn by the name of the trajectory, so every lag meets the same delays. How long the steps would take if nothing but
the work itself cost time follows from what the run measured. With U(s) the seconds of update s, M(s) those of the
longest chain of step s, W(c..s) those of all chains of the steps c to s over the slots, T(v) the moment in which
version v is served, and a lag of L:

    T(s + 1) = max( T(s), T(c - L) + max(M(c), W(c..s)) for c <= s ) + U(s)

because the steps c to s are collected from T(c - L) on, and all of them before update s. Only steps that count stand
for c: chains that were done before the first of them are no work of those that count.

The bar: at least 85% of that ideal. Sleeps dominate, so another program on the machine disturbs it little.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean

from agentfly_lib.evaluation.report import read_report
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.tools import ToolContext, tool
from agentfly_lib.tools.arithmetic import ExpressionError, evaluate, format_number
from agentfly_lib.tools.call import ToolResult
from benchmarks.report import Finding, show

__all__ = ["Pipeline", "calculator", "delay_of", "main"]

LAGS = (0, 1, 2)
STEPS = 12
WARM_UP = 3
"""Steps that are not counted: the collections of the first ones begin beside the evaluation of the starting model."""
SLOTS = 64
MEDIAN_SECONDS, SIGMA, LONGEST_SECONDS = 0.4, 1.2, 15.0
FLOOR = 0.85


@tool(timeout=60.0)
async def calculator(expression: str, context: ToolContext) -> ToolResult | str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, for example (12 + 3) * 4.
    """
    if not context.group_id.startswith("eval"):
        context.state["calls"] = context.state.get("calls", 0) + 1
        await asyncio.sleep(delay_of(f"{context.trajectory_id}/{context.state['calls']}"))
    try:
        return format_number(evaluate(expression))
    except ExpressionError as error:
        return ToolResult(observation=f"Error: {error}", error=str(error))


def delay_of(call: str) -> float:
    """Seconds that a call takes: log-normal, a function of its name alone."""
    number = int.from_bytes(hashlib.blake2b(call.encode(), digest_size=8).digest(), "little")
    normal = NormalDist().inv_cdf((number + 0.5) / 2**64)
    return min(math.exp(math.log(MEDIAN_SECONDS) + SIGMA * normal), LONGEST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a run took, step by step, in seconds."""

    lag: int
    steps: list[float]
    updates: list[float]
    """With scoring and weight sync left out."""
    longest: list[float]
    """The longest chain of each step."""
    chains: list[float]
    """All chains of each step, added up."""
    slots: int

    def measured(self, first: int) -> float:
        """From the beginning of step `first` to the end."""
        return sum(self.steps[first:])

    def ideal(self, first: int) -> float:
        """The least that the same steps can take with this lag, given when those before `first` were done."""
        served = [0.0]
        for seconds in self.steps[:first]:
            served.append(served[-1] + seconds)
        for step in range(first, len(self.steps)):
            collected = max(
                served[max(begun - self.lag, 0)]
                + max(self.longest[begun], sum(self.chains[begun : step + 1]) / self.slots)
                for begun in range(first, step + 1)
            )
            served.append(max(served[step], collected) + self.updates[step])
        return served[-1] - served[first]


def main() -> bool:
    """Runs it; True if every bar is met."""
    findings: list[Finding] = []
    in_turn = math.nan
    with tempfile.TemporaryDirectory() as folder:
        for lag in LAGS:
            run, cpu = _run(Path(folder), lag)
            pipeline, metrics = _pipeline(run, lag), _metrics(run)
            counted = STEPS - WARM_UP
            measured, ideal = pipeline.measured(WARM_UP) / counted, pipeline.ideal(WARM_UP) / counted
            in_turn = measured if lag == 0 else in_turn
            before, after = (read_report(run.evaluation(version, "sampled").report_file) for version in (0, STEPS))
            if before.reward is None or after.reward is None:
                raise RuntimeError("an evaluation has no reward")
            findings += [
                Finding(what=f"lag {lag}: a step", value=measured, unit="s"),
                Finding(what=f"lag {lag}: a step, ideal", value=ideal, unit="s"),
                Finding(what=f"lag {lag}: ideal / measured", value=ideal / measured, unit="ratio", floor=FLOOR),
                Finding(what=f"lag {lag}: lag 0 / measured", value=in_turn / measured, unit="ratio"),
                Finding(what=f"lag {lag}: an update", value=fmean(pipeline.updates[WARM_UP:]), unit="s"),
                Finding(what=f"lag {lag}: the longest chain", value=fmean(pipeline.longest[WARM_UP:]), unit="s"),
                Finding(
                    what=f"lag {lag}: of an update, beside a collection",
                    value=_mean(metrics, "time/overlap/fraction"),
                    unit="share",
                ),
                Finding(
                    what=f"lag {lag}: the engine idle",
                    value=_mean(metrics, "time/engine_idle/fraction"),
                    unit="share",
                ),
                Finding(
                    what=f"lag {lag}: age of a trained token",
                    value=_mean(metrics, "train/policy_lag/mean"),
                    unit="updates",
                ),
                Finding(
                    what=f"lag {lag}: mismatch KL", value=_mean(metrics, "train/mismatch_kl/mean"), unit="nats/token"
                ),
                Finding(what=f"lag {lag}: held-out reward before", value=before.reward.mean, unit="reward"),
                Finding(what=f"lag {lag}: held-out reward after", value=after.reward.mean, unit="reward"),
                Finding(what=f"lag {lag}: its lower bound (95%)", value=after.reward.low, unit="reward"),
                Finding(what=f"lag {lag}: its upper bound (95%)", value=after.reward.high, unit="reward"),
                Finding(what=f"lag {lag}: CPU of all processes", value=cpu, unit="s"),
            ]
    notes = (
        f"demo model, 16 problems x 8 chains a step, {SLOTS} slots, {STEPS} steps of which {WARM_UP} are warm-up; tool "
        f"delays log-normal, median {MEDIAN_SECONDS} s, sigma {SIGMA}"
    )
    return show("async_pipeline", findings, notes=notes)


def _run(root: Path, lag: int) -> tuple[RunDirectory, float]:
    """Trains; the run, and CPU seconds of the command and the processes that it has waited for."""
    command = [sys.executable, "-m", "agentfly_lib", "train", "recipes/demo.toml", "--quiet"]
    for override in (
        f"run.root={root}",
        f"run.name=lag-{lag}",
        f"run.steps={STEPS}",
        f"rollout.max_policy_lag={lag}",
        f"rollout.max_concurrency={SLOTS}",
        "rollout.problems_per_step=16",
        'agent.tools=["benchmarks.async_pipeline:calculator"]',
        "agent.tool_timeout_seconds=60",
        "evaluation.every_steps=0",
        "evaluation.samples=2",
        "evaluation.greedy=false",
        "checkpoint.every_steps=1000",
    ):
        command += ["--set", override]
    used = _children_seconds()
    subprocess.run(command, check=True, timeout=1800, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "160"})
    return RunDirectory(root / f"lag-{lag}"), _children_seconds() - used


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _metrics(run: RunDirectory) -> list[dict[str, float]]:
    return [json.loads(run.step(step).metrics_file.read_text()) for step in range(STEPS)]


def _mean(metrics: list[dict[str, float]], name: str) -> float:
    return fmean(each.get(name, 0.0) for each in metrics[WARM_UP:])


def _pipeline(run: RunDirectory, lag: int) -> Pipeline:
    metrics = _metrics(run)
    seconds = [
        [
            trajectory.metrics["seconds"]
            for group in load_scored_groups(run.step(step))
            for trajectory in group.trajectories
        ]
        for step in range(STEPS)
    ]
    return Pipeline(
        lag=lag,
        steps=[each["time/step/seconds"] for each in metrics],
        updates=[each["time/update/seconds"] for each in metrics],
        longest=[max(of_step) for of_step in seconds],
        chains=[sum(of_step) for of_step in seconds],
        slots=SLOTS,
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
