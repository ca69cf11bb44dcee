"""Fine-tuning on stored trajectories: choose them, start the learner alone, and lay out each step's share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from prefect import task
from pydantic import BaseModel, ConfigDict

from agentfly_lib.data.imitation import check_tokens, imitated, lay_out, select_trajectories
from agentfly_lib.data.order import problems_of_step
from agentfly_lib.errors import DataError
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import LearnerRef, ModelRef, StepReport
from agentfly_lib.store.atomic import write_json
from agentfly_lib.types import Problem, Trajectory
from tasks.options import RETRIED, within
from tasks.session import current_session
from tasks.workers import start_learner

__all__ = ["FinetuneReport", "Members", "choose", "finetune_report", "imitate_step", "record", "start"]

logger = logging.getLogger(__name__)

Members = Sequence[tuple[Problem, Trajectory]]
"""Everything that is imitated."""


class FinetuneReport(BaseModel):
    """What fine-tuning came to."""

    model_config = ConfigDict(frozen=True)

    name: str
    directory: str
    trajectories: int
    epochs: float
    text: str


async def choose(model: ModelRef) -> Members:
    """The trajectories that the config accepts, read from the shards of its runs.

    Raises `ConfigError` if the recipe has problems instead, or the tokens are of another tokenizer, and `DataError` if
    nothing, or less than a step's worth, is good enough.
    """
    session = current_session()
    data, accepted = imitated(session.config)
    await asyncio.to_thread(check_tokens, model.path, data)
    with session.display.stage("choose trajectories"):
        selection = await asyncio.to_thread(select_trajectories, data, accepted)
    session.display.note(f"imitating {selection.text}")
    per_step = session.config.rollout.problems_per_step
    if len(selection.chosen) < per_step:
        raise DataError(
            f"rollout.problems_per_step={per_step} is more than there is to imitate, {selection.text}; lower it"
        )
    return selection.chosen


@task(name="start-learner", **RETRIED)
async def start(_: ModelRef, version: int) -> LearnerRef:
    """Starts Ray and the learner, and brings it to a version; the model is the one that the flow resolved."""
    session = current_session()
    limit = session.start_seconds + session.config.learner.update_timeout_seconds * max(version, 1)
    async with within(limit, "the start of the learner"):
        with session.display.stage("start learner"):
            return await start_learner(session, version)


async def imitate_step(step: int, members: Members) -> None:
    """The step's share of the trajectories, as collected and scored rollouts; epochs are seeded permutations."""
    session = current_session()
    session.times.begin(step)
    run = session.config.run
    rows = problems_of_step(len(members), session.config.rollout.problems_per_step, step, run.seed)
    await asyncio.to_thread(lay_out, session.directory.step(step), step, [members[row] for row in rows])


async def record(update: StepReport) -> None:
    """Sends the step's metrics to MLflow and to the table on the screen."""
    session = current_session()
    session.tracker.log_metrics(update.step, update.metrics)
    await asyncio.to_thread(write_json, session.directory.step(update.step).metrics_file, update.metrics)
    session.display.row(str(update.step), update.metrics)
    if session.steps_bar is not None:
        session.steps_bar.update(completed=update.step + 1)


def finetune_report(session: Session, members: Members) -> FinetuneReport:
    """For the terminal."""
    config, directory = session.config, session.directory
    epochs = config.run.steps * config.rollout.problems_per_step / len(members)
    text = (
        f"{config.run.name}: {config.run.steps} updates on {len(members)} trajectories ({epochs:.2f} epochs)\n"
        f"checkpoint {directory.checkpoint(config.run.steps)}\n"
        f"evaluate it: agentfly evaluate {directory.checkpoint(config.run.steps)} --recipe RECIPE"
    )
    return FinetuneReport(
        name=config.run.name, directory=str(directory.path), trajectories=len(members), epochs=epochs, text=text
    )
