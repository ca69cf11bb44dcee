"""The order of problems under a curriculum: the same whether the run was killed or not, with or without its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agentfly_lib.configs import CurriculumOrderConfig
from agentfly_lib.data.curriculum import CurriculumState, curriculum_order
from agentfly_lib.errors import LedgerError
from agentfly_lib.pipeline.problems import curriculum_state, outcome_part
from agentfly_lib.rewards import CompositeReward, Part, Reward
from agentfly_lib.store.layout import RunDirectory, group_id
from agentfly_lib.store.manifest import RolloutStore, iter_groups
from agentfly_lib.store.score import Score
from agentfly_lib.store.scores import ScoreStore
from agentfly_lib.types import Outcome, Problem, Segment, StopReason, Trajectory, TrajectoryGroup

CONFIG = CurriculumOrderConfig()
ROWS, PER_STEP = 12, 3


def group(name: str) -> TrajectoryGroup:
    segment = Segment(
        token_ids=np.arange(3, dtype=np.int32),
        loss_mask=np.array([False, True, True]),
        logprobs=np.array([np.nan, -1, -1], np.float32),
        turns=(),
    )
    members = tuple(
        Trajectory(
            id=f"{name}/{chain}",
            problem_id=name,
            group_id=name,
            chain=chain,
            segments=(segment,),
            stop=StopReason.FINISHED,
        )
        for chain in range(2)
    )
    return TrajectoryGroup(id=name, problem=Problem(id=name, messages=()), trajectories=members)


def state(run: RunDirectory, step: int, outcome: str | None = None, lag: int = 0) -> CurriculumState:
    return curriculum_state(run, step, CONFIG, num_train=ROWS, seed=0, outcome=outcome, lag=lag)


def do_step(run: RunDirectory, step: int, rows: Sequence[int]) -> None:
    """The step's problems, of which the even rows are always solved and the odd ones never."""
    directory, names = run.step(step), [group_id(step, index) for index in range(PER_STEP)]
    store = RolloutStore.open(directory, step=step, policy_version=step, group_ids=names, chains=2)
    store.append([group(name) for name in reversed(names)])
    rollouts, scores = store.finish(), ScoreStore(directory, "right")
    for part, groups in iter_groups(directory, rollouts):
        scores.append(
            part.name,
            [
                Score(
                    trajectory_id=trajectory.id,
                    outcome=Outcome.SCORED,
                    reward=float(rows[int(each.id[-5:])] % 2 == 0) - 0.5,
                    parts={"right": float(rows[int(each.id[-5:])] % 2 == 0)},
                )
                for each in groups
                for trajectory in each.trajectories
            ],
        )
    scores.finish(rollouts)


def test_a_resume_draws_the_same_problems(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    orders, rates = [], {}
    for step in range(5):
        orders.append(curriculum_order(state(run, step, "right"), ROWS, step, 0, CONFIG))
        do_step(run, step, orders[-1])
        for row in orders[-1][:PER_STEP]:
            rates[row] = 0.5 * rates.get(row, 0.5) + 0.5 * (row % 2 == 0)
    assert state(run, 5, "right").rates == pytest.approx(rates)

    def again() -> list[list[int]]:
        return [curriculum_order(state(run, step, "right"), ROWS, step, 0, CONFIG) for step in range(5)]

    assert json.loads(run.curriculum_file.read_text())["steps"] == 5
    assert again() == orders  # from a file that is ahead
    run.curriculum_file.unlink()
    assert again() == orders  # from the scores alone
    assert [curriculum_order(state(run, 4, "right"), ROWS, 4, 0, CONFIG)] == orders[4:]


@pytest.mark.parametrize("lag", [1, 2])
def test_under_a_lag_a_step_is_drawn_by_what_was_known_when_it_may_begin(tmp_path: Path, lag: int) -> None:
    def order(step: int) -> list[int]:
        return curriculum_order(state(run, step, "right", lag), ROWS, step, 0, CONFIG)

    run, orders = RunDirectory(tmp_path), []
    for version in range(6):  # step s begins when version s - lag is served: the steps before that are scored
        while len(orders) <= version + lag:
            orders.append(order(len(orders)))
        do_step(run, version, orders[version])
    rates: dict[int, float] = {}
    known = [rates]
    for step in range(6):
        rates = dict(rates)
        for row in orders[step][:PER_STEP]:
            rates[row] = 0.5 * rates.get(row, 0.5) + 0.5 * (row % 2 == 0)
        known.append(rates)
    for step, drawn in enumerate(orders):
        seen = CurriculumState(rates=known[max(step - lag, 0)])
        assert drawn == curriculum_order(seen, ROWS, step, 0, CONFIG), step

    def again() -> list[list[int]]:
        return [order(step) for step in range(len(orders))]

    # A resume asks for several steps at once, from a file that may be ahead of the first of them.
    file = run.curriculum_file.read_text()
    assert [order(step) for step in reversed(range(5, 5 + lag + 1))] == orders[5 : 5 + lag + 1][::-1]
    assert run.curriculum_file.read_text() == file, "it is not taken back for a step that it remembers"
    assert again() == orders  # from a file that is far ahead
    run.curriculum_file.unlink()
    assert again() == orders  # from the scores alone


def test_a_step_that_is_not_scored_ends_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    names = [group_id(0, index) for index in range(PER_STEP)]
    store = RolloutStore.open(run.step(0), step=0, policy_version=0, group_ids=names, chains=2)
    store.append([group(name) for name in names])
    with pytest.raises(LedgerError, match="is not scored"):
        state(run, 1)


def test_the_raw_outcome_is_the_first_part_of_a_composite() -> None:
    right = Reward(name="right", function=lambda prediction: 1.0)
    assert outcome_part(right) is None
    assert outcome_part(CompositeReward(name="both", parts=(Part(reward=right, name="correct"),))) == "correct"
