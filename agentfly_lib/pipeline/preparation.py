"""Prepare the dataset, find the model, and check that they fit together before anything expensive starts."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from agentfly_lib.agents.agent import Agent
from agentfly_lib.cluster import gpu_count
from agentfly_lib.configs import DataConfig, ModelConfig
from agentfly_lib.data.prepare import load_problems, prepare_dataset
from agentfly_lib.errors import ConfigError, DataError, EnvironmentFailure
from agentfly_lib.inference.placement import place
from agentfly_lib.models.resolve import resolve_model
from agentfly_lib.pipeline.session import Session
from agentfly_lib.preflight import check_context
from agentfly_lib.refs import DatasetRef, ModelRef
from agentfly_lib.rewards.registry import reward_identity
from agentfly_lib.rollout.prompts import FirstPrompts
from agentfly_lib.store.atomic import read_json, write_json
from agentfly_lib.store.recorded import began_with
from agentfly_lib.store.scores import read_score_manifest
from agentfly_lib.training.checkpoint import newest_checkpoint, require_resumable
from agentfly_lib.viewer.live import LiveDisplay

__all__ = ["check", "prepare", "resolve"]

logger = logging.getLogger(__name__)


async def prepare(config: DataConfig, root: Path) -> DatasetRef:
    """Reads, validates and splits the dataset; instant when it was done before."""
    display = LiveDisplay.current()
    with display.stage("prepare data") as bar:

        def progress(done: int, total: int) -> None:
            bar.update(completed=done, total=total)

        dataset = await asyncio.to_thread(prepare_dataset, config, root / "datasets", progress)
    logger.info("%d training and %d held-out problems in %s", dataset.train_rows, dataset.eval_rows, dataset.path)
    if dataset.duplicates:
        display.note(f"{dataset.duplicates} held-out problems also stood in the training rows; removed there")
    return dataset


async def resolve(session: Session, config: ModelConfig) -> ModelRef:
    """Finds the model directory, and makes the small demo model if it is asked for and not there: the session's."""
    with session.display.stage("prepare model", total=1) as bar:

        def progress(done: int, total: int, loss: float) -> None:
            bar.update(completed=done, total=total, note=f"loss {loss:.3f}")

        model = await asyncio.to_thread(resolve_model, config, None, progress, template=session.config.agent.template)
    await asyncio.to_thread(_claim_model, session, model)
    session.model = model
    return model


def _claim_model(session: Session, model: ModelRef) -> None:
    """A run goes on with the model that it began with."""
    began = began_with(session.directory.model_file, model)
    if began.fingerprint != model.fingerprint:
        raise ConfigError(
            f"{session.directory.path} began with the model {began.path} (fingerprint {began.fingerprint[:12]}), but "
            f"{model.path} now has fingerprint {model.fingerprint[:12]}; restore that model, or start another run with "
            "--set run.name=NAME"
        )


def _claim_dataset(session: Session, dataset: DatasetRef) -> None:
    """A run goes on with the problems that it began with: what a step asks for is a row of them."""
    began = began_with(session.directory.dataset_file, dataset)
    if began.fingerprint != dataset.fingerprint:
        raise ConfigError(
            f"{session.directory.path} began with other problems ({began.train_rows} and {began.eval_rows} held out, "
            f"fingerprint {began.fingerprint[:12]}) than there are now ({dataset.train_rows} and {dataset.eval_rows}, "
            f"fingerprint {dataset.fingerprint[:12]}): what [data] names has changed. Restore it, or start another run "
            "with --set run.name=NAME"
        )


def check(session: Session, dataset: DatasetRef) -> None:
    """Names, columns and lengths fit together: agent, tools, reward, template, prompts; and there are GPUs enough.

    Raises `ConfigError` for unknown names, missing columns, problems that have changed and what cannot be placed,
    `DataError` for prompts that are too long.
    """
    config, agent = session.config, session.agent
    _claim_dataset(session, dataset)
    if config.ray.address is None:  # what a cluster has is known once it is joined
        place(config, gpu_count(), learner=session.trains)
    check_context(config, session.model.path)
    if session.trains and not session.schedule.finished():
        newest = newest_checkpoint(session.directory.checkpoints, tidy=False)
        if newest is not None:
            require_resumable(config.learner, newest.path)
    agent.reward.check_columns(dataset.columns)
    _say_edited_reward(session)
    marker = dataset.path / f"checked-{agent.fingerprint}.json"
    longest = read_json(marker) if marker.exists() else _longest_prompts(dataset, agent)
    if not marker.exists():
        write_json(marker, longest)
    for split, (length, problem_id) in longest.items():
        if length > config.rollout.max_prompt_tokens:
            raise DataError(
                f"{split} split: the first prompt of problem {problem_id} has {length} tokens, more than "
                f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens}; raise it (and rollout.context_length), "
                "or remove the problem"
            )


def _say_edited_reward(session: Session) -> None:
    """A run may go on with a reward whose code was edited; what was scored before keeps its scores."""
    scored = [step for step in map(session.directory.step, session.directory.steps()) if step.score_manifest.exists()]
    if not scored or session.schedule.finished():
        return
    then, now = read_score_manifest(scored[-1]).reward, reward_identity(session.config.agent.reward)
    if then != now:
        logger.warning(
            "the reward's code is another than when %s was scored (%s, now %s): what is scored from now on has "
            "rewards of the new code, and each step's scores/MANIFEST.json says of which",
            scored[-1].path,
            then,
            now,
        )


def _longest_prompts(dataset: DatasetRef, agent: Agent) -> dict[str, tuple[int, str]]:
    longest: dict[str, tuple[int, str]] = {}
    prompts = FirstPrompts(agent)
    for split in ("train", "eval"):
        lengths = ((len(prompts.render(problem).prompt), problem.id) for problem in load_problems(dataset, split))
        try:
            longest[split] = max(lengths)
        except EnvironmentFailure as error:
            raise DataError(f"{split} split: {error}; repair the picture, or remove the problem") from error
    return longest
