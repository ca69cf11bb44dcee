"""An evaluation on paper: three problems, four samples each, every number worked out by hand."""

import numpy as np
import pytest

from agentfly_lib.errors import ShardError
from agentfly_lib.evaluation import (
    EvaluationReport,
    compare,
    evaluate_groups,
    pass_ks,
    read_report,
    report_table,
    write_report,
)
from agentfly_lib.types import (
    Failure,
    FailureKind,
    FinishReason,
    Problem,
    Segment,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

BROKEN = Failure(kind=FailureKind.INFRASTRUCTURE, message="engine gone", where="generate")


def trajectory(group: str, chain: int, reward: float | None, stop=StopReason.FINISHED, failure=None) -> Trajectory:
    turn = Turn(message={"role": "assistant", "content": "x"}, start=1, end=3, sampled=True, finish=FinishReason.STOP)
    segment = Segment(
        token_ids=np.array([1, 2, 3], np.int32),
        loss_mask=np.array([False, True, True]),
        logprobs=np.array([np.nan, -1, -1], np.float32),
        turns=(turn,),
    )
    return Trajectory(
        id=f"{group}/{chain}",
        problem_id=group,
        group_id=group,
        chain=chain,
        segments=(segment,),
        stop=StopReason.FAILED if failure else stop,
        reward=reward,
        metrics={"tool_calls": float(chain)},
        failure=failure,
    )


def group(name: str, *trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(id=name, problem=Problem(id=name, messages=()), trajectories=trajectories)


def rewards(name: str, *values: float) -> TrajectoryGroup:
    return group(name, *(trajectory(name, chain, value) for chain, value in enumerate(values)))


GROUPS = [
    rewards("a", 1, 1, 0, 0),
    rewards("b", 0, 0, 0, 1),
    group(
        "c",
        trajectory("c", 0, 1),
        trajectory("c", 1, 0, StopReason.MAX_TOKENS),
        trajectory("c", 2, None, failure=BROKEN),
        trajectory("c", 3, None),
    ),
]


def report(*groups: TrajectoryGroup, version=0, mode="sampled", samples=4, **options) -> EvaluationReport:
    return evaluate_groups(
        groups, policy_version=version, mode=mode, reward_name="math_equal", samples=samples, **options
    )


def test_the_mean_is_over_problems_and_only_over_trajectories_with_a_reward():
    found = report(*GROUPS)
    assert found.problem_rewards == {"a": 0.5, "b": 0.25, "c": 0.5}
    assert found.reward is not None
    assert found.reward.mean == pytest.approx((0.5 + 0.25 + 0.5) / 3)
    assert 0.25 <= found.reward.low < found.reward.mean < found.reward.high <= 0.5


def test_pass_at_k_takes_only_problems_with_k_scored_samples():
    found = report(*GROUPS)
    assert found.pass_at[1].mean == pytest.approx((2 / 4 + 1 / 4 + 1 / 2) / 3)
    assert found.pass_at[2].mean == pytest.approx((5 / 6 + 1 / 2 + 1) / 3)
    assert found.pass_at[4].mean == 1.0  # c has two scored samples, so it is not in this mean
    assert [found.pass_at[k].problems for k in (1, 2, 4)] == [3, 3, 2]


def test_every_trajectory_is_counted_as_exactly_one_outcome():
    found = report(*GROUPS, dropped_groups=1)
    assert (found.scored, found.truncated, found.failed, found.dropped) == (9, 1, 1, 1 + 4)
    assert found.scored + found.truncated + found.failed + found.dropped == found.problems * found.samples == 16


def test_metrics_of_the_sampled_mode():
    metrics = report(*GROUPS, samples=4).metrics
    assert metrics["eval/reward/mean"] == pytest.approx(1.25 / 3)
    assert metrics["eval/reward/ci_low"] < metrics["eval/reward/mean"] < metrics["eval/reward/ci_high"]
    assert metrics["eval/pass_at_1/mean"] == pytest.approx(1.25 / 3)
    assert metrics["eval/turns/mean"] == 1.0
    assert metrics["eval/sampled_tokens/mean"] == 2.0
    assert metrics["eval/tool_calls/mean"] == pytest.approx((6 + 6 + 1) / 10)
    assert metrics["eval/failed/count"] == 1.0
    assert metrics["eval/truncated/fraction"] == pytest.approx(1 / 12)


def test_metrics_of_the_greedy_mode_never_take_the_names_of_the_sampled_one():
    greedy = report(rewards("a", 1), rewards("b", 0), samples=1, mode="greedy").metrics
    assert greedy["eval/greedy/mean"] == 0.5
    assert greedy["eval/greedy/ci_low"] == pytest.approx(0.0945, abs=1e-3)  # Wilson, 1 of 2
    assert all(name.startswith("eval/greedy/") for name in greedy)
    assert not greedy.keys() & report(*GROUPS, samples=4).metrics.keys()


def test_an_evaluation_without_any_reward_has_no_mean_but_has_counts():
    found = report(group("c", trajectory("c", 0, None, failure=BROKEN)), samples=1)
    assert found.reward is None
    assert found.pass_at == {}
    assert "eval/reward/mean" not in found.metrics
    assert found.metrics["eval/failed/count"] == 1.0


def test_a_failed_trajectory_counts_nowhere_even_if_someone_gave_it_a_reward():
    found = report(group("c", trajectory("c", 0, 1.0, failure=BROKEN), trajectory("c", 1, 0.0)), samples=2)
    assert found.problem_rewards == {"c": 0.0}


def test_two_groups_of_the_same_problem_are_one_problem_in_the_means():
    again = TrajectoryGroup(id="z", problem=Problem(id="a", messages=()), trajectories=rewards("a", 0, 0).trajectories)
    found = report(rewards("a", 1, 1), again, rewards("b", 1, 1), samples=2)
    assert found.problem_rewards == {"a": 0.5, "b": 1.0}
    assert found.problems == 3


def test_the_report_survives_its_file(tmp_path):
    found = report(*GROUPS)
    write_report(tmp_path / "report.json", found)
    assert read_report(tmp_path / "report.json") == found


def test_a_damaged_report_is_named(tmp_path):
    (tmp_path / "report.json").write_text('{"version": 7}')
    with pytest.raises(ShardError, match=r"report\.json .*version"):
        read_report(tmp_path / "report.json")


@pytest.mark.parametrize(("samples", "ks"), [(1, (1,)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_ks_are_powers_of_two_and_the_number_of_samples(samples, ks):
    assert pass_ks(samples) == ks


def many(version: int, solved: int, *, mode="sampled", samples=1) -> EvaluationReport:
    groups = [rewards(f"p{index:02}", *[float(index < solved)] * samples) for index in range(20)]
    return report(*groups, version=version, mode=mode, samples=samples)


def test_a_paired_difference_and_whether_it_means_anything():
    comparison = compare(many(0, 2), many(9, 12))
    assert comparison.difference.mean == pytest.approx(0.5)
    assert comparison.difference.problems == 20
    assert 0.2 < comparison.difference.low < 0.5 < comparison.difference.high < 0.8
    assert comparison.significant
    assert compare(many(9, 12), many(0, 2)).difference.mean == pytest.approx(-0.5)
    assert compare(many(9, 12), many(0, 2)).significant


def test_no_difference_and_few_problems_are_not_significant():
    assert not compare(many(0, 5), many(9, 5)).significant
    assert not compare(many(0, 5), many(9, 6)).significant
    five = [rewards(f"p{index}", 0.0) for index in range(5)], [rewards(f"p{index}", 1.0) for index in range(5)]
    assert not compare(report(*five[0], samples=1), report(*five[1], samples=1)).significant


def test_pairing_sees_a_small_gain_that_two_separate_intervals_do_not():
    easy_and_hard = [1.0, 0.0] * 100
    better = [min(1.0, value + 0.25 * (index % 10 == 1)) for index, value in enumerate(easy_and_hard)]
    before = report(*(rewards(f"p{i:03}", value) for i, value in enumerate(easy_and_hard)), samples=1)
    after = report(*(rewards(f"p{i:03}", value) for i, value in enumerate(better)), samples=1)
    assert before.reward is not None
    assert after.reward is not None
    assert after.reward.low < before.reward.high
    assert compare(before, after).significant


def test_only_common_problems_are_compared_and_only_like_with_like():
    assert compare(report(rewards("a", 1), rewards("b", 0), samples=1), report(rewards("b", 1), samples=1)) == compare(
        report(rewards("b", 0), samples=1), report(rewards("b", 1), samples=1)
    )
    with pytest.raises(ValueError, match="no scored problem in common"):
        compare(report(rewards("a", 1), samples=1), report(rewards("b", 1), samples=1))
    with pytest.raises(ValueError, match="different mode"):
        compare(many(0, 2), many(0, 2, mode="greedy"))


def test_the_table_has_the_baseline_first_and_one_row_per_version():
    rows = report_table([many(10, 12), many(10, 14, mode="greedy"), many(0, 2), many(0, 1, mode="greedy")])
    assert [row["policy"] for row in rows] == ["0 (baseline)", "10"]
    assert rows[0]["gain"] == "-"
    assert rows[1]["gain"].startswith("+0.500 [")
    assert rows[1]["gain"].endswith("*")
    assert rows[0]["reward"] == "0.100 [0.028, 0.301]"  # Wilson, 2 of 20
    assert rows[1]["greedy"].startswith("0.700 [")
    assert len({tuple(row) for row in rows}) == 1


def test_the_table_without_sampled_evaluations_compares_the_greedy_ones():
    rows = report_table([many(0, 2, mode="greedy"), many(5, 18, mode="greedy")])
    assert rows[1]["gain"].startswith("+0.800")
    assert rows[1]["reward"] == "-"
