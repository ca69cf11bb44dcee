"""Small, readable rollouts for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agentfly_lib.store import Score, StepDirectory, outcome_of
from agentfly_lib.types import (
    FinishReason,
    Problem,
    Segment,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def _trajectory(group: str, chain: int, stop: StopReason, length: int) -> Trajectory:
    mask = np.arange(length) >= length // 2
    segment = Segment(
        token_ids=np.arange(length, dtype=np.int32) + 100 * chain,
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
        turns=(
            Turn(
                message={"role": "assistant", "content": "4"},
                start=length // 2,
                end=length,
                sampled=True,
                finish=FinishReason.STOP,
                policy_version=3,
            ),
        ),
    )
    return Trajectory(
        id=f"{group}/{chain}", problem_id="p", group_id=group, chain=chain, segments=(segment,), stop=stop
    )


def _group(name: str, stops: tuple[StopReason, ...] = (StopReason.FINISHED,) * 2, length: int = 6) -> TrajectoryGroup:
    return TrajectoryGroup(
        id=name,
        problem=Problem(id="p", messages=({"role": "user", "content": "2 + 2?"},), columns={"answer": "4"}),
        trajectories=tuple(_trajectory(name, chain, stop, length) for chain, stop in enumerate(stops)),
    )


def _scores(groups: list[TrajectoryGroup], rewards: dict[str, float | None] | None = None) -> list[Score]:
    scores = []
    for trajectory in (each for group in groups for each in group.trajectories):
        reward = None if trajectory.stop is StopReason.FAILED else (rewards or {}).get(trajectory.id, 1.0)
        scores.append(Score(trajectory_id=trajectory.id, outcome=outcome_of(trajectory.stop, reward), reward=reward))
    return scores


@pytest.fixture
def make_group() -> Callable[..., TrajectoryGroup]:
    """`make_group("0-1", stops=(...))`: one group, a chain per stop reason (two finished ones unless said)."""
    return _group


@pytest.fixture
def make_scores() -> Callable[..., list[Score]]:
    """`make_scores(groups, {"0-1/0": None})`: a score per trajectory, reward 1 unless said, none for failed ones."""
    return _scores


@pytest.fixture
def step(tmp_path) -> StepDirectory:
    return StepDirectory(tmp_path / "steps" / "000000")
