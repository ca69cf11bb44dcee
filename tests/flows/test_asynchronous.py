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
from tests.flows.patient_calculator import LAG, STEPS
from tests.flows.test_resume import hurt, parts, times_tried

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.mark.timeout(900)
def test_with_a_lag_of_2_a_kill_and_the_deaths_of_an_engine_and_a_rank_lose_nothing(
    agentfly, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(root / "lagging")
    monkeypatch.setenv("PATIENT_RUN", str(run.path))
    arguments = ["recipes/ci.toml"]
    for change in (
        f"run.root={root}",
        "run.name=lagging",
        f"run.steps={STEPS}",
        f"rollout.max_policy_lag={LAG}",
        "rollout.max_concurrency=48",
        "rollout.groups_per_part=1",
        'agent.tools=["tests.flows.patient_calculator:calculator"]',
        "agent.tool_timeout_seconds=500",
        "data.eval_problems=4",
        "evaluation.every_steps=0",
        "evaluation.samples=1",
        "evaluation.greedy=false",
    ):
        arguments += ["--set", change]

    killed = hurt("collect:2", arguments)  # with some groups of step 2 on disk, beside other collections or an update
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-1000:] + killed.stderr[-3000:]
    kept = parts(run)
    interrupted = read_rollout_manifest(run.step(2))
    assert 0 < len(interrupted.done) < interrupted.problems
    assert [read_rollout_manifest(run.step(step)).policy_version for step in (0, 1, 2)] == [0, 0, 0]
    assert not interrupted.complete
    assert run.first_open_step(STEPS) in (1, 2)

    final = hurt("engine:3,rank:3", arguments)
    assert final.returncode == 0, final.stdout[-2000:] + final.stderr[-4000:]
    assert "other weights than before" not in final.stderr, "the learner trains again on stored steps, to the same end"
    assert kept.items() <= parts(run).items(), "a finished trajectory was made again"
    assert [(row.step, row.balanced, row.requested, row.failed) for row in run_balance(run)] == [
        (step, True, 64, 0) for step in range(STEPS)
    ]

    versions: dict[int, set[int]] = defaultdict(set)
    mixed: list[set[int]] = []
    for step in range(STEPS):
        for group in load_scored_groups(run.step(step)):
            for trajectory in group.trajectories:
                sampled = {int(v) for each in trajectory.segments for v in each.versions[each.loss_mask]}
                versions[step] |= sampled
                mixed += [sampled] if len(sampled) > 1 else []
    assert versions[0] == {0}
    assert all(versions[step] <= set(range(max(step - LAG, 0), step + 1)) for step in range(STEPS))
    assert mixed, "a chain goes on under the weights that come"

    metrics = [json.loads(run.step(step).metrics_file.read_text()) for step in range(STEPS)]
    assert all(each["train/stale_groups/count"] == 0 for each in metrics)
    assert sum(each.get("engine/replaced/count", 0) for each in metrics) >= 1
    for step, of_step in enumerate(metrics):
        assert of_step["train/policy_lag/max"] <= step - min(versions[step])
        assert 0 <= of_step.get("time/overlap/fraction", 0.0) <= 1
    assert max(each.get("time/overlap/fraction", 0.0) for each in metrics) > 0, "collections went on beside updates"
    assert "Collections beside updates" in final.stdout

    counts = times_tried(root, "train-lagging")
    assert 1 <= read_rollout_manifest(run.step(2)).attempt <= counts["collect-000002"], "it went on with what was there"
    assert counts["collect-000003"] == 2, "the collection was tried again when no engine was left"
    assert counts["update-000003"] == 2, "the update was tried again after the rank's death"

    replay = agentfly("replay", run.path, "--from-step", "2", "--quiet")
    assert replay.status == 0, replay.errors[-3000:]
    assert [line for line in replay.output.splitlines() if line.startswith("step")] == [
        "step 2: the same log-probs",
        "step 3: the same log-probs, the same weights as the checkpoint",
    ]
