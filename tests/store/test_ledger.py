"""problems x chains = scored + truncated + failed + dropped, counted from the files."""

from __future__ import annotations

import json

import pytest

from agentfly_lib.errors import LedgerError, ShardError
from agentfly_lib.store import (
    RolloutStore,
    RunDirectory,
    ScoreStore,
    StepBalance,
    iter_groups,
    run_balance,
    write_scores,
)
from agentfly_lib.types import StopReason

FINISHED, CUT, FAILED = StopReason.FINISHED, StopReason.CONTEXT_FULL, StopReason.FAILED


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def collect(run, number, groups, asked, dropped=None, finish=True):
    store = RolloutStore.open(run.step(number), step=number, policy_version=number, group_ids=asked, chains=2)
    for group in groups:
        store.append([group])
    return store.finish(dropped) if finish else store.manifest


def score(run, number, rollouts, make_scores, rewards=None):
    store = ScoreStore(run.step(number), "math")
    for part, groups in iter_groups(run.step(number), rollouts):
        store.append(part.name, make_scores(groups, rewards))
    return store


@pytest.fixture
def scored_run(run, make_group, make_scores):
    """Step 0: of 4 x 2, 2 right, 1 cut, 2 failed, 1 without a reward, 2 given up."""
    groups = [
        make_group("a", (FINISHED, FINISHED)),
        make_group("b", (CUT, FAILED)),
        make_group("c", (FAILED, FINISHED)),
    ]
    rollouts = collect(run, 0, groups, ["a", "b", "c", "d"], {"d": "outage"})
    score(run, 0, rollouts, make_scores, {"a/1": None}).finish(rollouts)
    return run


def test_every_requested_trajectory_is_counted_once(scored_run):
    (balance,) = run_balance(scored_run)
    assert balance == StepBalance(step=0, problems=4, chains=2, requested=8, scored=2, truncated=1, failed=2, dropped=3)
    assert balance.balanced


def test_a_run_that_has_not_started_has_an_empty_ledger(run):
    assert run_balance(run) == []


def test_a_group_that_is_missing_without_a_reason_does_not_balance(run, make_group, make_scores):
    rollouts = collect(run, 0, [make_group("a")], ["a", "b"], finish=False)
    score(run, 0, rollouts, make_scores)
    (balance,) = run_balance(run)
    assert balance.scored == 2
    assert balance.pending == 2
    assert not balance.balanced


def test_rollouts_without_scores_do_not_balance(run, make_group):
    collect(run, 3, [make_group("a"), make_group("b", (FAILED, CUT))], ["a", "b"])
    (balance,) = run_balance(run)
    assert (balance.step, balance.requested, balance.pending) == (3, 4, 4)


def test_steps_are_listed_in_order(run, make_group, make_scores):
    for number in (10, 2):
        rollouts = collect(run, number, [make_group("a")], ["a"])
        score(run, number, rollouts, make_scores).finish(rollouts)
    assert [balance.step for balance in run_balance(run)] == [2, 10]


def test_counts_in_a_manifest_are_not_believed(scored_run):
    path = scored_run.step(0).score_manifest
    manifest = json.loads(path.read_text())
    manifest["counts"]["scored"] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(LedgerError, match=r"claims .*'scored': 3.* its part files hold .*'scored': 2"):
        run_balance(scored_run)


def test_a_list_of_parts_that_lost_one_does_not_balance(scored_run):
    path = scored_run.step(0).rollout_manifest
    manifest = json.loads(path.read_text())
    del manifest["parts"][1]
    path.write_text(json.dumps(manifest))
    with pytest.raises(LedgerError, match="its part files hold"):
        run_balance(scored_run)


def test_a_damaged_or_missing_part_is_named(scored_run):
    part = scored_run.step(0).rollouts / "part-00001.arrow"
    data = part.read_bytes()
    part.write_bytes(data[:-1] + b"x")
    with pytest.raises(ShardError, match=r"rollouts/part-00001\.arrow does not match its checksum"):
        run_balance(scored_run)
    part.unlink()
    with pytest.raises(ShardError, match=r"rollouts/part-00001\.arrow is missing"):
        run_balance(scored_run)


def test_scores_that_lost_a_trajectory_are_named(scored_run, make_group, make_scores):
    step = scored_run.step(0)
    manifest = json.loads(step.score_manifest.read_text())
    short = write_scores(
        step.scores / "part-00000.arrow",
        make_scores([make_group("a")])[:1],
        reward="math",
        rollouts_sha256=manifest["parts"][0]["rollouts_sha256"],
    )
    manifest["parts"][0] = short.model_dump()
    step.score_manifest.write_text(json.dumps(manifest))
    with pytest.raises(LedgerError, match=r"scores/part-00000\.arrow does not have exactly one score"):
        run_balance(scored_run)
