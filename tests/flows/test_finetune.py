"""Rejection-sampling fine-tuning on the rollouts of a finished run, as a person does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.scored import load_scored_groups

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_what_was_right_becomes_more_likely(ci_run, agentfly, root: Path) -> None:
    options = ["finetune", "recipes/rft.toml"] + [
        part
        for change in (
            f"run.root={root}",
            f'data.runs=["{ci_run.directory}"]',
            "run.steps=4",
            "rollout.problems_per_step=16",
        )
        for part in ("--set", change)
    ]
    done = agentfly(*options)
    assert done.status == 0, done.output[-2000:] + done.errors[-4000:]
    assert "4 updates on" in done.output
    run = RunDirectory(root / "rft")
    losses = [json.loads(run.step(step).metrics_file.read_text())["train/policy_loss/mean"] for step in range(4)]
    assert losses[-1] < losses[0]
    rewards = {group.trajectories[0].reward for step in range(4) for group in load_scored_groups(run.step(step))}
    assert rewards == {1.0}
    assert (run.checkpoint(4) / "hf" / "model.safetensors").exists()
    assert agentfly("ledger", run.path).status == 0
    pairs = agentfly("preferences", ci_run.directory, "--output", root / "pairs.parquet")
    assert pairs.status == 0
    assert "pairs from 24 groups" in pairs.output


def test_a_recipe_with_problems_is_refused(agentfly, tmp_path: Path) -> None:
    refused = agentfly("finetune", "recipes/ci.toml", "--set", f"run.root={tmp_path}")
    assert refused.status == 2
    assert "problems to ask, not trajectories to imitate" in refused.errors
