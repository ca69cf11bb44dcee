"""Fine-tuning on stored trajectories: choose them, lay out each step's share, and say what it came to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from agentfly_lib.data.imitation import check_tokens, imitated, lay_out, select_trajectories
from agentfly_lib.data.order import problems_of_step
from agentfly_lib.errors import ConfigError, DataError
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import ImitatedRef
from agentfly_lib.store.recorded import began_with
from agentfly_lib.types import Problem, Trajectory

__all__ = ["FinetuneReport", "Imitated", "choose", "finetune_report", "lay_out_step"]


class Imitated:
    """Everything that is imitated. No dataclass: a task runner looks into those, and this is large."""

    def __init__(self, members: Sequence[tuple[Problem, Trajectory]]) -> None:
        self.members = members


class FinetuneReport(BaseModel):
    """What fine-tuning came to."""

    model_config = ConfigDict(frozen=True)

    name: str
    directory: str
    trajectories: int
    epochs: float
    text: str


async def choose(session: Session) -> Imitated:
    """The trajectories that the config accepts, read from the shards of its runs.

    Raises `ConfigError` if the recipe has problems instead, the tokens are of another tokenizer, or the run began with
    other trajectories, and `DataError` if nothing, or less than a step's worth, is good enough.
    """
    data, accepted = imitated(session.config)
    await asyncio.to_thread(check_tokens, session.model.path, data)
    with session.display.stage("choose trajectories"):
        selection = await asyncio.to_thread(select_trajectories, data, accepted)
    session.display.note(f"imitating {selection.text}")
    per_step = session.config.rollout.problems_per_step
    if len(selection.chosen) < per_step:
        raise DataError(
            f"rollout.problems_per_step={per_step} is more than there is to imitate, {selection.text}; lower it"
        )
    await asyncio.to_thread(_claim, session, selection.ref)
    return Imitated(selection.chosen)


def _claim(session: Session, chosen: ImitatedRef) -> None:
    """A run goes on with the trajectories that it began with: a step's share is taken by their places."""
    began = began_with(session.directory.dataset_file, chosen)
    if began != chosen:
        raise ConfigError(
            f"{session.directory.path} began with {began.trajectories} trajectories (fingerprint "
            f"{began.fingerprint[:12]}), and now there are {chosen.trajectories} (fingerprint "
            f"{chosen.fingerprint[:12]}): a run of data.runs was trained further, scored again or removed. Restore it, "
            "or start another run with --set run.name=NAME"
        )


async def lay_out_step(session: Session, step: int, imitated: Imitated) -> None:
    """The step's share of the trajectories, as collected and scored rollouts; epochs are seeded permutations."""
    session.times.begin(step)
    run, members = session.config.run, imitated.members
    rows = problems_of_step(len(members), session.config.rollout.problems_per_step, step, run.seed)
    await asyncio.to_thread(lay_out, session.directory.step(step), step, [members[row] for row in rows])


def finetune_report(session: Session, imitated: Imitated) -> FinetuneReport:
    """For the terminal."""
    config, directory, members = session.config, session.directory, imitated.members
    epochs = config.run.steps * config.rollout.problems_per_step / len(members)
    text = (
        f"{config.run.name}: {config.run.steps} updates on {len(members)} trajectories ({epochs:.2f} epochs)\n"
        f"checkpoint {directory.checkpoint(config.run.steps)}\n"
        f"evaluate it: agentfly evaluate {directory.checkpoint(config.run.steps)} --recipe RECIPE"
    )
    return FinetuneReport(
        name=config.run.name, directory=str(directory.path), trajectories=len(members), epochs=epochs, text=text
    )
