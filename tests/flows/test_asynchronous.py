"""Collections beside updates, for real: weights change under running chains, and a killed run goes on."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.ledger import run_balance
from agentfly_lib.store.manifest import read_rollout_manifest
from agentfly_lib.store.scored import load_scored_groups
from tests.flows.patient_calculator import STEPS
from tests.flows.test_resume import hurt, parts

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_with_a_lag_of_1_tokens_of_two_versions_are_trained_on_and_a_kill_loses_nothing(
    agentfly, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(root / "lagging")
    monkeypatch.setenv("PATIENT_RUN", str(run.path))
    arguments = ["recipes/ci.toml"]
    for change in (
        f"run.root={root}",
        "run.name=lagging",
        f"run.steps={STEPS}",
        "rollout.max_policy_lag=1",
        "rollout.max_concurrency=48",
        'agent.tools=["tests.flows.patient_calculator:calculator"]',
        "agent.tool_timeout_seconds=120",
        "data.eval_problems=4",
        "evaluation.every_steps=0",
        "evaluation.samples=1",
        "evaluation.greedy=false",
        "checkpoint.every_steps=99",
    ):
        arguments += ["--set", change]

    killed = hurt("collect:1", arguments)  # with some groups of step 1 on disk
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-1000:] + killed.stderr[-3000:]
    kept = parts(run)
    interrupted = read_rollout_manifest(run.step(1))
    assert 0 < len(interrupted.done) < interrupted.problems
    assert (interrupted.policy_version, interrupted.complete) == (0, False)
    # A group of step 1 is whole only after step 2 has begun, which it may once version 1 is served.
    assert read_rollout_manifest(run.step(2)).policy_version == 1
    assert run.first_open_step(STEPS) == 1

    final = agentfly("train", *arguments)
    assert final.status == 0, final.errors[-4000:]
    assert "other weights than before" not in final.errors, "the learner trained again on step 0, to the same weights"
    assert kept.items() <= parts(run).items(), "a finished trajectory was made again"
    assert [(row.step, row.balanced, row.requested, row.failed) for row in run_balance(run)] == [
        (step, True, 64, 0) for step in range(STEPS)
    ]

    versions: dict[int, set[int]] = defaultdict(set)
    mixed = 0
    for step in range(STEPS):
        for group in load_scored_groups(run.step(step)):
            for trajectory in group.trajectories:
                sampled = {int(v) for each in trajectory.segments for v in each.versions[each.loss_mask]}
                versions[step] |= sampled
                mixed += len(sampled) > 1
    assert versions[0] == {0}
    assert versions[1] == {0, 1}
    assert versions[2] <= {1, 2}
    assert mixed > 0, "a chain goes on under the weights that come"

    metrics = [json.loads(run.step(step).metrics_file.read_text()) for step in range(STEPS)]
    assert all(each["train/stale_groups/count"] == 0 for each in metrics)
    assert [each["train/policy_lag/max"] for each in metrics][:2] == [0, 1]
    assert 0 < metrics[1]["train/policy_lag/mean"] < 1
    assert all(0 <= each["time/overlap/fraction"] <= 1 for each in metrics if "time/overlap/fraction" in each)
    assert "Collections beside updates" in final.output
