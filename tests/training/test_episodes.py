"""A trajectory as estimators see it: trained tokens in a row, turns over all segments, rewards with their turns."""

from __future__ import annotations

import numpy as np
import pytest

from agentfly_lib.configs import AlgorithmConfig
from agentfly_lib.training.episodes import episode_of
from agentfly_lib.training.samples import build_samples
from agentfly_lib.types import Problem, Segment, StopReason, Trajectory, TrajectoryGroup, Turn


def sampled(start: int, end: int) -> Turn:
    return Turn(message={"role": "assistant", "content": "..."}, start=start, end=end, sampled=True)


def told(start: int, end: int, text: str, reward: float | None = None) -> Turn:
    return Turn(message={"role": "tool", "content": text}, start=start, end=end, sampled=False, reward=reward)


def segment(length: int, *turns: Turn) -> Segment:
    mask = np.zeros(length, np.bool_)
    for turn in turns:
        if turn.sampled:
            mask[turn.start : turn.end] = True
    return Segment(
        token_ids=np.arange(length, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, np.float32(-1), np.float32(np.nan)),
        turns=turns,
    )


def two_segments(chain: int, reward: float, door: str = "door") -> Trajectory:
    """Turn 0 of two tokens and turn 1 of one; then, after the history was rewritten, turn 2 of three tokens."""
    return Trajectory(
        id=f"g/{chain}",
        problem_id="g",
        group_id="g",
        chain=chain,
        segments=(
            segment(8, sampled(2, 4), told(4, 6, door, 0.25), sampled(6, 7), told(7, 8, "wall", 0.0)),
            segment(6, sampled(2, 5), told(5, 6, "end", 0.5)),
        ),
        stop=StopReason.FINISHED,
        reward=reward,
    )


def masks(trajectory: Trajectory) -> list[np.ndarray]:
    return [part.loss_mask for part in trajectory.segments]


def test_turns_and_their_tokens() -> None:
    trajectory = two_segments(0, 1.0)
    episode = episode_of(trajectory, masks(trajectory))
    assert episode.turn_of_token.tolist() == [0, 0, 1, 2, 2, 2]
    assert episode.turn_rewards.tolist() == [0.25, 0.0, 0.5]
    assert episode.states == ("[]", '["door"]', '["wall"]')
    # 0.25 of the outcome of 1 stays for the end.
    assert episode.rewards_of_tokens.tolist() == [0, 0.25, 0, 0, 0, 0.75]
    assert episode.rewards_of_turns.tolist() == [0.25, 0.0, 0.75]


def test_tokens_that_nobody_sampled_belong_to_the_turn_that_they_lead_to() -> None:
    trajectory = two_segments(0, 1.0)
    everything = [np.arange(len(part)) > 0 for part in trajectory.segments]
    episode = episode_of(trajectory, everything)
    assert episode.turn_of_token.tolist() == [0, 0, 0, 1, 1, 1, 1, *[2] * 5]


def test_a_trajectory_of_which_nothing_says_where_turns_are_is_one_turn() -> None:
    part = Segment(
        token_ids=np.arange(4, dtype=np.int32),
        loss_mask=np.array([False, True, False, True]),
        logprobs=np.zeros(4, np.float32),
        turns=(),
    )
    bare = Trajectory(
        id="g/0", problem_id="g", group_id="g", chain=0, segments=(part,), stop=StopReason.FINISHED, reward=2.0
    )
    episode = episode_of(bare, [part.loss_mask])
    assert (episode.num_turns, episode.rewards_of_tokens.tolist()) == (1, [0.0, 2.0])


def test_turn_advantages_land_on_the_tokens_of_their_turns() -> None:
    # Outcomes 1 and 0: +-0.7071058. Undiscounted returns: (1, 0.75, 0.75) and (0, -0.25, -0.25). The first state is
    # shared (1 and 0: +-0.7071058), so is the last ("wall": 0.75 and -0.25: +-0.7071058); "door" and "hall" are not.
    algorithm = AlgorithmConfig.model_validate({"advantage": {"type": "gigpo", "gamma": 1.0}})
    members = (two_segments(0, 1.0), two_segments(1, 0.0, door="hall"))
    group = TrajectoryGroup(id="g", problem=Problem(id="g", messages=()), trajectories=members)
    built = build_samples([group], algorithm)
    unit = 0.7071058
    first = [0, 0, 2 * unit, 2 * unit, 0, 0, unit, 0]
    second = [0, 0, 2 * unit, 2 * unit, 2 * unit, 0]
    found = [sample.advantages.tolist() for sample in built.samples]
    assert found[0] == pytest.approx(first, abs=1e-6)
    assert found[1] == pytest.approx(second, abs=1e-6)
    assert found[2] == pytest.approx([-value for value in first], abs=1e-6)
    assert found[3] == pytest.approx([-value for value in second], abs=1e-6)
    assert built.report.trained_trajectories == 2
