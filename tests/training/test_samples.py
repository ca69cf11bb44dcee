"""Who is trained on, and who is counted instead."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest

from agentfly_lib.configs import AlgorithmConfig
from agentfly_lib.errors import LearnerError, RewardError
from agentfly_lib.training.samples import SampleReport, build_samples
from agentfly_lib.types import Failure, FailureKind, Segment, StopReason, TrainingSample, TrajectoryGroup

ALGORITHM = AlgorithmConfig()


def built(
    groups: list[TrajectoryGroup], algorithm: AlgorithmConfig = ALGORITHM
) -> tuple[list[TrainingSample], SampleReport]:
    step = build_samples(groups, algorithm)
    return step.samples, step.report


def part(factories: ModuleType, length: int = 8, sampled: slice = slice(4, 8)) -> Segment:
    return factories.segment(np.random.default_rng(length), length, sampled=sampled)


def test_every_sampled_token_carries_its_trajectorys_advantage(factories: ModuleType) -> None:
    one = factories.trajectory("g", 0, (part(factories),), 1.0)
    two = factories.trajectory("g", 1, (part(factories),), 0.0)
    samples, report = built([factories.group("g", [one, two])])
    # mean 1/2, sample std sqrt(1/2) = 0.7071068: A = 0.5 / 0.7071078 = 0.7071058
    assert samples[0].advantages[:4].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(samples[0].advantages[4:], 0.7071058, atol=1e-6)
    np.testing.assert_allclose(samples[1].advantages[4:], -0.7071058, atol=1e-6)
    assert (report.samples, report.tokens, report.loss_tokens) == (2, 16, 8)
    assert (report.reward_mean, report.reward_std) == (0.5, 0.5)


def test_a_trajectory_of_two_segments_counts_once_in_its_group(factories: ModuleType) -> None:
    twice = factories.trajectory("g", 0, (part(factories, 8), part(factories, 9)), 1.0)
    others = [factories.trajectory("g", chain, (part(factories),), 0.0) for chain in (1, 2, 3)]
    samples, report = built([factories.group("g", [twice, *others])])
    # As worked out for one right of four: counted twice, the mean would be 2/5.
    assert samples[0].advantages[4] == pytest.approx(1.499997)
    assert samples[1].advantages[4] == pytest.approx(1.499997)
    assert samples[2].advantages[4] == pytest.approx(-0.499999)
    assert report.trained_trajectories == 4
    assert report.samples == 5
    # Over the four trajectories: mean 0, population std sqrt((1.5^2 + 3 * 0.5^2) / 4) = 0.8660254, less 2e-6 of it.
    assert report.advantage_mean == pytest.approx(0.0, abs=1e-7)
    assert report.advantage_std == pytest.approx(0.8660237, abs=1e-6)
    assert report.advantage_max_abs == pytest.approx(1.499997)


def test_what_could_not_be_scored_is_excluded_and_never_a_zero(factories: ModuleType) -> None:
    broken = Failure(kind=FailureKind.INFRASTRUCTURE, message="engine died", where="generate")
    fault = Failure(kind=FailureKind.POLICY, message="no answer", where="generate")
    members = [
        factories.trajectory("g", 0, (part(factories),), 1.0),
        factories.trajectory("g", 1, (part(factories),), 0.0),
        factories.trajectory("g", 2, (part(factories),), None),
        factories.trajectory("g", 3, (part(factories),), 0.0, failure=broken, stop=StopReason.FAILED),
        factories.trajectory("g", 4, (), 0.0),
        factories.trajectory("g", 5, (part(factories),), 0.0, failure=fault, stop=StopReason.FAILED),
    ]
    samples, report = built([factories.group("g", members)])
    # Rewards that count: 1, 0, 0. mean 1/3; variance (4/9 + 2/9) / 2 = 1/3; A = (2/3) / 0.5773513 = 1.1546986
    assert [sample.trajectory_id for sample in samples] == ["g/0", "g/1", "g/5"]
    assert samples[0].advantages[4] == pytest.approx(1.1546986, abs=1e-6)
    assert report.excluded_trajectories == 3
    assert report.reward_mean == pytest.approx(1 / 3)


def test_groups_without_signal_are_dropped_and_counted(factories: ModuleType) -> None:
    equal = [factories.trajectory("a", chain, (part(factories),), 0.5) for chain in range(3)]
    single = [factories.trajectory("b", 0, (part(factories),), 1.0)]
    samples, report = built([factories.group("a", equal), factories.group("b", single)])
    assert samples == []
    assert (report.groups, report.no_signal_groups, report.trajectories) == (2, 2, 4)
    assert report.reward_mean == pytest.approx(2.5 / 4)


def test_truncated_trajectories_can_be_kept_out_of_the_loss_but_not_of_the_statistics(factories: ModuleType) -> None:
    cut = factories.trajectory("g", 0, (part(factories),), 0.0, stop=StopReason.MAX_TOKENS)
    done = [factories.trajectory("g", chain, (part(factories),), 1.0) for chain in (1, 2, 3)]
    samples, report = built([factories.group("g", [cut, *done])], AlgorithmConfig(mask_truncated=True))
    # mean 3/4, std 1/2: A = 0.25 / 0.500001
    assert [sample.trajectory_id for sample in samples] == ["g/1", "g/2", "g/3"]
    assert samples[0].advantages[4] == pytest.approx(0.499999)
    assert report.masked_truncated == 1


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused_by_name(factories: ModuleType, reward: float) -> None:
    members = [factories.trajectory("g", 0, (part(factories),), reward)]
    with pytest.raises(RewardError, match="g/0"):
        built([factories.group("g", members)])


def test_the_first_token_of_a_segment_cannot_be_trained_on(factories: ModuleType) -> None:
    bad = part(factories)
    bad.loss_mask[0] = True
    members = [factories.trajectory("g", 0, (bad,), 1.0), factories.trajectory("g", 1, (part(factories),), 0.0)]
    with pytest.raises(LearnerError, match="g/0"):
        built([factories.group("g", members)])


def test_missing_log_probs_are_counted(factories: ModuleType) -> None:
    gap = part(factories)
    gap.logprobs[5] = np.nan
    members = [factories.trajectory("g", 0, (gap,), 1.0), factories.trajectory("g", 1, (part(factories),), 0.0)]
    _, report = built([factories.group("g", members)])
    assert report.missing_logprobs == 1


def test_tokens_that_are_not_those_that_were_sampled_are_refused(factories: ModuleType) -> None:
    exact = factories.trajectory("g", 0, (part(factories),), 1.0)
    inexact = dataclasses.replace(
        factories.trajectory("g", 1, (part(factories),), 0.0), metrics={"turns": 3.0, "inexact_turns": 2.0}
    )
    with pytest.raises(
        LearnerError, match="trajectory g/1 cannot be trained on: of 2 of its turns the server gave text"
    ):
        built([factories.group("g", [exact, inexact])])
    unscored = dataclasses.replace(inexact, reward=None)
    built([factories.group("g", [exact, unscored])])  # it enters nothing anyway


def test_only_what_is_accepted_is_imitated_and_once(factories: ModuleType) -> None:
    one, again, other = part(factories), part(factories), part(factories, 9)
    members = [
        factories.trajectory("g", 0, (one,), 1.0),
        factories.trajectory("g", 1, (again,), 1.0),  # the same tokens
        factories.trajectory("g", 2, (other,), 1.0),
        factories.trajectory("g", 3, (part(factories, 10),), 0.5),
    ]
    nothing = [factories.trajectory("h", 0, (one,), 0.0)]
    groups = [factories.group("g", members), factories.group("h", nothing)]
    samples, report = built(groups, AlgorithmConfig.model_validate({"advantage": {"type": "accepted"}}))
    assert [sample.trajectory_id for sample in samples] == ["g/0", "g/2"]
    assert samples[0].advantages[4:].tolist() == [1, 1, 1, 1]
    assert (report.rejected_trajectories, report.no_signal_groups) == (2, 1)
    twice = AlgorithmConfig.model_validate({"advantage": {"type": "accepted", "distinct": False}})
    assert [sample.trajectory_id for sample in built(groups, twice)[0]] == ["g/0", "g/1", "g/2"]


def test_tokens_of_unknown_origin_may_be_imitated(factories: ModuleType) -> None:
    told = dataclasses.replace(
        factories.trajectory("g", 0, (part(factories),), 1.0), metrics={"turns": 1.0, "inexact_turns": 1.0}
    )
    samples, _ = built(
        [factories.group("g", [told])], AlgorithmConfig.model_validate({"advantage": {"type": "accepted"}})
    )
    assert len(samples) == 1


def test_where_the_step_is_the_comparison_a_step_of_equals_teaches_nothing(factories: ModuleType) -> None:
    algorithm = AlgorithmConfig.model_validate({"advantage": {"type": "reinforce_pp"}})

    def groups(*rewards: float) -> list[TrajectoryGroup]:
        return [
            factories.group(str(place), [factories.trajectory(str(place), 0, (part(factories),), reward)])
            for place, reward in enumerate(rewards)
        ]

    samples, report = built(groups(0.5, 0.5, 0.5), algorithm)
    assert (samples, report.no_signal_groups) == ([], 3)
    samples, report = built(groups(1.0, 0.0), algorithm)
    # Four tokens of 1 and four of 0: mean 1/2, var 8/4/7 = 2/7, so +-0.5 / 0.5345225
    assert samples[0].advantages[4:].tolist() == pytest.approx([0.9354143] * 4, abs=1e-6)
    assert samples[1].advantages[4:].tolist() == pytest.approx([-0.9354143] * 4, abs=1e-6)
    assert report.no_signal_groups == 0
