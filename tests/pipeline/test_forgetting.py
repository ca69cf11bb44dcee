"""Which checkpoints a run keeps, by the evaluations that lie beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from agentfly_lib.configs import CheckpointConfig
from agentfly_lib.evaluation.intervals import Estimate
from agentfly_lib.evaluation.report import EvaluationReport, write_report
from agentfly_lib.pipeline.saving import forget
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.training.checkpoint import CheckpointState, seal, staging_directory


def write(directory: RunDirectory, version: int, reward: float | None) -> None:
    staging = staging_directory(directory.checkpoint(version))
    staging.mkdir(parents=True)
    state = CheckpointState(
        policy_version=version, nonfinite_in_row=0, ranks=1, zero_stage=0, dtype="float32", trained_with={}
    )
    seal(directory.checkpoint(version), state)
    if reward is None:
        return
    report = EvaluationReport(
        policy_version=version,
        mode="sampled",
        reward_name="math_equal",
        problems=1,
        samples=1,
        reward=Estimate(mean=reward, low=reward, high=reward, problems=1),
        pass_at={},
        scored=1,
        truncated=0,
        failed=0,
        dropped=0,
        behaviour={},
        problem_rewards={},
    )
    folder = directory.evaluation(version, "sampled").path
    folder.mkdir(parents=True)
    write_report(directory.evaluation(version, "sampled").report_file, report)


@pytest.mark.parametrize(("best", "kept"), [(0, [50]), (1, [20, 50]), (2, [20, 30, 50])])
def test_the_newest_and_the_best_by_held_out_reward_are_kept(tmp_path: Path, best: int, kept: list[int]) -> None:
    directory = RunDirectory(tmp_path)
    for version, reward in ((10, 0.2), (20, 0.7), (30, 0.4), (40, None), (50, None)):
        write(directory, version, reward)
    forget(directory, CheckpointConfig(keep_last=1, keep_best=best))
    assert sorted(int(item.name) for item in directory.checkpoints.iterdir()) == kept
