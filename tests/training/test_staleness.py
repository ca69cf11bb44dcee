"""Tokens of older weights than the lag allows are not trained on, and the rest know how old they are."""

from __future__ import annotations

import numpy as np
import pytest

from agentfly_lib.configs import ArithmeticDataConfig, PretrainedModelConfig, RunConfig
from agentfly_lib.training.staleness import fresh_groups, lag_metrics
from agentfly_lib.types import Problem, Segment, StopReason, TrainingSample, Trajectory, TrajectoryGroup


def segment(*versions: int) -> Segment:
    """A prompt of one token, and one sampled token of each version."""
    count = len(versions) + 1
    return Segment(
        token_ids=np.arange(count, dtype=np.int32),
        loss_mask=np.arange(count) > 0,
        logprobs=np.array([np.nan] + [-1.0] * len(versions), np.float32),
        turns=(),
        versions=np.array([-1, *versions], np.int32),
    )


def group(name: str, *chains: tuple[Segment, ...]) -> TrajectoryGroup:
    members = tuple(
        Trajectory(
            id=f"{name}/{chain}",
            problem_id=name,
            group_id=name,
            chain=chain,
            segments=segments,
            stop=StopReason.FINISHED,
            reward=float(chain),
        )
        for chain, segments in enumerate(chains)
    )
    return TrajectoryGroup(id=name, problem=Problem(id=name, messages=()), trajectories=members)


def config(lag: int, **changes) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "lag"},
            "model": PretrainedModelConfig(name_or_path="nowhere"),
            "data": ArithmeticDataConfig(),
            "rollout": {"max_policy_lag": lag},
        }
        | changes
    )


NEW = group("new", (segment(5, 5),), (segment(5), segment(5)))
MIXED = group("mixed", (segment(5, 5),), (segment(5), segment(4, 5)))
OLD = group("old", (segment(5, 5),), (segment(3, 4, 5),))
UNKNOWN = group("unknown", (segment(-1, 5),), (segment(-1),))


@pytest.mark.parametrize(
    ("lag", "kept"), [(0, [NEW, UNKNOWN]), (1, [NEW, MIXED, UNKNOWN]), (2, [NEW, MIXED, OLD, UNKNOWN])]
)
def test_a_group_with_one_token_that_is_too_old_is_left_out(lag, kept):
    assert fresh_groups([NEW, MIXED, OLD, UNKNOWN], config(lag), 5) == kept


def test_what_is_imitated_is_as_old_as_it_is():
    data = {"type": "shards", "runs": ["somewhere"]}
    assert fresh_groups([OLD], config(0, data=data, rollout={}), 900) == [OLD]


def test_the_lag_is_counted_over_trained_tokens_whose_version_is_known():
    def sample(name: str, number: int, of: Segment) -> TrainingSample:
        return TrainingSample(
            trajectory_id=name,
            segment=number,
            token_ids=of.token_ids,
            loss_mask=of.loss_mask,
            rollout_logprobs=of.logprobs,
            advantages=np.zeros(len(of), np.float32),
        )

    samples = [
        sample("old/1", 0, OLD.trajectories[1].segments[0]),  # lags 2, 1, 0
        sample("mixed/1", 1, MIXED.trajectories[1].segments[1]),  # 1, 0
        sample("unknown/0", 0, UNKNOWN.trajectories[0].segments[0]),  # unknown, 0
    ]
    assert lag_metrics(samples, [OLD, MIXED, UNKNOWN], 5) == {
        "train/policy_lag/mean": pytest.approx(4 / 6),
        "train/policy_lag/max": 2.0,
    }
    assert lag_metrics([], [OLD], 5) == {}
