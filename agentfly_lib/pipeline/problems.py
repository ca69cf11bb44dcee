"""Which problems a step asks for, and in what order: a function of the config and of the scores on disk."""

from __future__ import annotations

from agentfly_lib.configs import CurriculumOrderConfig, SignalSamplingConfig
from agentfly_lib.data.curriculum import CurriculumState, advance, curriculum_order
from agentfly_lib.data.order import problems_of_step, step_order
from agentfly_lib.errors import LedgerError
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import DatasetRef
from agentfly_lib.rewards.composite import CompositeReward
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.rollout.dynamic import raw_outcomes
from agentfly_lib.store.atomic import read_model, write_model
from agentfly_lib.store.layout import RunDirectory, group_id
from agentfly_lib.store.manifest import read_rollout_manifest
from agentfly_lib.store.scored import scores_so_far
from agentfly_lib.store.scores import read_score_manifest
from agentfly_lib.types import Problem

__all__ = ["curriculum_state", "outcome_part", "problems_in_order"]


def problems_in_order(session: Session, dataset: DatasetRef, step: int) -> list[tuple[str, Problem]]:
    """(group id, problem) of everything that the step may ask for, its own problems first."""
    config, train = session.config, session.problems(dataset, "train")
    order, per_step = config.rollout.order, config.rollout.problems_per_step
    refills = isinstance(config.rollout.dynamic_sampling, SignalSamplingConfig)
    if isinstance(order, CurriculumOrderConfig):
        state = curriculum_state(
            session.directory,
            step,
            order,
            num_train=dataset.train_rows,
            seed=config.run.seed,
            lag=config.rollout.max_policy_lag,
            outcome=order.outcome or outcome_part(session.agent.reward),
        )
        rows = curriculum_order(state, dataset.train_rows, step, config.run.seed, order)
    else:
        order_of = step_order if refills else problems_of_step
        rows = order_of(dataset.train_rows, per_step, step, config.run.seed)
    if not refills:
        rows = rows[:per_step]  # the rest are not read: a step cannot ask for them
    return [(group_id(step, index), train[row]) for index, row in enumerate(rows)]


def curriculum_state(
    directory: RunDirectory,
    step: int,
    config: CurriculumOrderConfig,
    *,
    num_train: int,
    seed: int,
    outcome: str | None,
    lag: int = 0,
) -> CurriculumState:
    """How the problems went in the steps before `step` - `lag`, which are those that are scored when `step` begins.

    Written to `curriculum.json`, and read from there where that saves work. Raises `LedgerError` if one of them is not
    scored yet.
    """
    file, wanted = directory.curriculum_file, max(step - lag, 0)
    state = (
        read_model(file, CurriculumState, remedy="remove it: it is made again") if file.exists() else CurriculumState()
    )
    if wanted < state.steps <= wanted + len(state.earlier):  # a later step came first
        return state.before(state.steps - wanted)
    if state.steps > wanted or len(state.earlier) < min(lag, state.steps):  # taken back to an earlier step
        state = CurriculumState()
    while state.steps < wanted:
        rows = curriculum_order(state.before(lag), num_train, state.steps, seed, config)
        state = advance(state, _outcomes(directory, state.steps, rows, outcome), config, remember=lag)
    write_model(file, state)
    return state


def outcome_part(reward: Reward) -> str | None:
    """The part of a reward that is its raw outcome: the first of a composite, else the reward itself (None)."""
    return reward.parts[0].label if isinstance(reward, CompositeReward) else None


def _outcomes(run: RunDirectory, step: int, rows: list[int], outcome: str | None) -> dict[int, list[float]]:
    directory = run.step(step)
    scores = scores_so_far(directory)
    if scores is None or not (read_rollout_manifest(directory).complete and read_score_manifest(directory).complete):
        raise LedgerError(f"{directory.path} is not scored, so the curriculum cannot go on; run the same command again")
    row_of = {group_id(step, index): row for index, row in enumerate(rows)}
    return {row_of[name]: raw_outcomes(of_group, outcome) for name, of_group in scores.items()}
