"""`agentfly plan`: the plan of a run, printed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentfly_lib.configs import PretrainedModelConfig, RunConfig
from agentfly_lib.inference.placement import Placement
from agentfly_lib.planning import Machine, Plan, plan_run
from agentfly_lib.planning.plan import Placed
from agentfly_lib.visible import visible

__all__ = ["render_plan", "show_plan"]

_STYLES = {"warn": "yellow", "fail": "bold red"}
_PLACEMENTS = {
    "cpu": "on the CPU",
    "split": "split: GPUs of their own",
    "colocated": "colocated: engines sleep while the learner computes",
}


def show_plan(
    config: RunConfig,
    *,
    gpus: int | None,
    gpu_memory_gib: float | None,
    shape_from: Path | None = None,
    console: Console | None = None,
) -> bool:
    """Prints the plan for this machine, or for GPUs that are described; whether it is known that the run fits.

    shape_from: a folder with the model's `config.json`, where the model itself is not here.
    """
    model = config.model if shape_from is None else PretrainedModelConfig(name_or_path=str(shape_from))
    plan = plan_run(config, Machine.here(gpus=gpus, gpu_memory_gib=gpu_memory_gib), model=model)
    (console or Console()).print(render_plan(plan, config))
    return plan.fits


def render_plan(plan: Plan, config: RunConfig) -> RenderableType:
    """A renderable for `rich`; it reads as well without colour."""
    parts: list[RenderableType] = [Rule(Text(visible(f"plan of {config.run.name}")), align="left"), _machine(plan)]
    if plan.placed:
        parts += [Text(), _placement(plan)]
        if plan.placement.bundles:
            parts.append(_group(plan.placement))
    parts += [Text(), _step(plan, config)]
    for finding in plan.findings:
        parts.append(Text(f"\n{finding.level}  {visible(finding.text)}", _STYLES[finding.level]))
    return Group(*parts, _verdict(plan))


def _verdict(plan: Plan) -> Text:
    if plan.fits:
        return Text("\nit fits", "bold green")
    if plan.fails:
        return Text("\nit does not fit", "bold red")
    return Text("\neverything has a place; whether its memory is enough is not known", "bold yellow")


def _machine(plan: Plan) -> Text:
    machine = plan.machine
    facts = [f"{machine.cpus} processors, {machine.memory_bytes / 2**30:.0f} GiB of memory"]
    if machine.gpus:
        each = f" of {machine.gpu_memory_bytes / 2**30:.0f} GiB" if machine.gpu_memory_bytes else ""
        facts.append(f"{machine.gpus} GPUs{each}")
    if plan.shape is not None:
        facts.append(f"a model of {plan.shape.parameters:,} parameters")
    return Text("; ".join(facts))


def _placement(plan: Plan) -> Table:
    title = f"who runs where ({_PLACEMENTS[plan.placement.kind]}), and its memory (estimated)"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column in ("process", "device"):
        table.add_column(column, no_wrap=True)
    for column in (
        "weights",
        "gradients",
        "optimizer",
        "reference",
        "buffers",
        "activations",
        "logits",
        "cache",
        "total",
    ):
        table.add_column(column, justify="right")
    for part in plan.placed:
        table.add_row(part.name, _device(part), *_sizes(plan, part))
    return table


def _group(placement: Placement) -> Text:
    sizes = Counter(bundle.gpus for bundle in placement.bundles)
    bundles = " and ".join(f"{count} of {gpus} GPU{'s' * (gpus > 1)}" for gpus, count in sizes.items())
    return Text(f"one placement group, with bundles: {bundles}; weights go to the engines by {placement.transfer}")


def _device(part: Placed) -> str:
    if part.device == "cpu":
        return "CPU"
    return f"GPU {', '.join(map(str, part.gpus))}{' in turn' * part.shared}"


def _sizes(plan: Plan, part: Placed) -> list[str]:
    if part.kind == "rank" and (rank := plan.rank) is not None:
        kept = [rank.weights, rank.gradients, rank.optimizer, rank.reference or None, rank.bucket + rank.gathered]
        sizes = [*kept, rank.activations, rank.logits, None, rank.total]
    elif part.kind == "engine" and (engine := plan.engine) is not None:
        sizes = [engine.weights, *[None] * 6, engine.cache, engine.total]
    else:
        sizes = [None] * 9
    return ["" if size is None else _size(size) for size in sizes]


def _size(number: int) -> str:
    return f"{number / 2**20:.0f} MiB" if number < 2**30 else f"{number / 2**30:.1f} GiB"


def _step(plan: Plan, config: RunConfig) -> Table:
    step, rollout = plan.step, config.rollout
    table = Table(box=None, show_header=False, pad_edge=False, title="one step, at most", title_justify="left")
    rows = {
        "trajectories": f"{step.trajectories:,} = {rollout.problems_per_step} problems x {rollout.chains} chains",
        "a minibatch": f"{step.per_minibatch:,} trajectories, {step.per_rank:g} a rank",
        "sampled tokens": f"{step.sampled_tokens:,}",
        "tokens through the learner": f"{step.trained_row_tokens:,}, {step.microbatches_per_rank} micro-batches a rank",
        "waves of generation": f"{step.waves:.2g} (chains over the seats of all engines)",
    }
    if plan.engine is not None:
        rows["cache of an engine"] = f"{plan.engine.cache_tokens:,} tokens"
    for name, value in rows.items():
        table.add_row(name, value)
    return table
