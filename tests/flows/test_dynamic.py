"""Dynamic sampling under a curriculum, through the whole collection flow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentfly_lib.data.curriculum import CurriculumState
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.ledger import run_balance
from agentfly_lib.store.manifest import read_rollout_manifest

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.mark.release
def test_groups_without_a_signal_are_replaced(agentfly, root: Path) -> None:
    options = ["collect", "recipes/ci.toml", "--steps", "2"]
    for change in (
        f"run.root={root}",
        "run.name=dynamic",
        "rollout.chains=2",
        "rollout.dynamic_sampling.type=signal",
        "rollout.dynamic_sampling.max_refills=2",
        "rollout.order.type=curriculum",
    ):
        options += ["--set", change]
    done = agentfly(*options)
    assert done.status == 0, done.output[-2000:] + done.errors[-4000:]
    run = RunDirectory(root / "dynamic-collect")
    manifests = [read_rollout_manifest(run.step(step)) for step in (0, 1)]
    for manifest in manifests:
        # Two chains of the demo model often do equally well, so some of the eight groups are replaced.
        assert 1 <= len(manifest.refills) <= 2
        assert manifest.problems == 8 + sum(manifest.refills)
        assert manifest.complete
    assert all(balance.balanced for balance in run_balance(run))
    state = CurriculumState.model_validate(json.loads(run.curriculum_file.read_text()))
    assert state.steps == 1
    assert len(state.rates) == manifests[0].problems
