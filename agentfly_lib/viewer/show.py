"""`agentfly show`: trajectories of a run, printed."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from agentfly_lib.chat import ChatFormat
from agentfly_lib.errors import AgentFlyError, UserError
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.manifest import iter_groups, read_rollout_manifest
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.types import TrajectoryGroup
from agentfly_lib.viewer.chat import run_chat
from agentfly_lib.viewer.text import render_trajectory
from agentfly_lib.visible import visible

__all__ = ["show_run"]


def show_run(
    run: Path, *, step: int | None, trajectory: str | None, count: int, console: Console | None = None
) -> None:
    """Prints trajectories of a step: those with the given id, or the first chain of the first `count` groups.

    Tokens are decoded with the run's own model if it can be found, else only turns are shown.
    Raises `UserError` if the step or the trajectory is not there.
    """
    directory, console = RunDirectory(run), console or Console()
    steps = directory.steps()
    if not steps:
        raise UserError(f"{run} has no steps yet")
    number = steps[-1] if step is None else step
    if number not in steps:
        raise UserError(f"{run} has no step {number}; it has {steps[0]} to {steps[-1]}")
    groups = _groups(directory, number, console)
    chosen = [
        (each, group.problem)
        for group in groups
        for each in (group.trajectories if trajectory else group.trajectories[:1])
        if trajectory in (None, each.id)
    ]
    if not chosen:
        example = groups[0].trajectories[0].id if groups else "none"
        raise UserError(f"step {number} of {run} has no trajectory {trajectory!r}; an id looks like {example}")
    chat = _chat(directory, console)
    for each, problem in chosen[:count]:
        console.print(render_trajectory(each, problem, chat))


def _groups(directory: RunDirectory, number: int, console: Console) -> list[TrajectoryGroup]:
    step = directory.step(number)
    try:
        return load_scored_groups(step)
    except AgentFlyError as error:
        console.print(visible(f"no rewards to show: {error}"), style="yellow", highlight=False, markup=False)
    return [group for _, groups in iter_groups(step, read_rollout_manifest(step)) for group in groups]


def _chat(directory: RunDirectory, console: Console) -> ChatFormat | None:
    try:
        return run_chat(directory)
    except AgentFlyError as error:
        console.print(visible(f"tokens are not shown: {error}"), style="yellow", highlight=False, markup=False)
        return None
