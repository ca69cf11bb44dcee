"""Rewards beside the shards."""

from __future__ import annotations

import os

import pytest

from agentfly_lib.errors import LedgerError, RewardError, ShardError
from agentfly_lib.store import (
    RolloutStore,
    Score,
    ScoreStore,
    iter_groups,
    load_scored_groups,
    outcome_of,
    read_score_manifest,
    read_scores,
    write_scores,
)
from agentfly_lib.types import Outcome, StopReason

FINISHED, CUT, FAILED = StopReason.FINISHED, StopReason.MAX_TURNS, StopReason.FAILED


@pytest.fixture
def rollouts(step, make_group):
    """Two parts: 0-1 alone, then 0-0 and 0-2; 0-3 was given up."""
    store = RolloutStore.open(step, step=0, policy_version=0, group_ids=["0-0", "0-1", "0-2", "0-3"], chains=2)
    store.append([make_group("0-1", stops=(FINISHED, CUT))])
    store.append([make_group("0-2", stops=(FAILED, FINISHED)), make_group("0-0")])
    return store.finish({"0-3": "time limit"})


def score_all(step, rollouts, make_scores, reward="math", rewards=None):
    store = ScoreStore(step, reward)
    for part, groups in iter_groups(step, rollouts):
        store.append(part.name, make_scores(groups, rewards))
    return store


@pytest.mark.parametrize(
    ("stop", "reward", "outcome"),
    [
        (StopReason.FINISHED, 1.0, Outcome.SCORED),
        (StopReason.FINISHED, 0.0, Outcome.SCORED),
        (StopReason.NO_TOOL_CALL, 0.0, Outcome.SCORED),
        (StopReason.FINISHED, None, Outcome.DROPPED),
        (StopReason.MAX_TURNS, 1.0, Outcome.TRUNCATED),
        (StopReason.MAX_TOKENS, None, Outcome.TRUNCATED),
        (StopReason.CONTEXT_FULL, 0.0, Outcome.TRUNCATED),
        (StopReason.FAILED, None, Outcome.FAILED),
    ],
)
def test_the_outcome_follows_from_the_stop_reason_and_the_reward(stop, reward, outcome):
    assert outcome_of(stop, reward) is outcome


class TestScore:
    @pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
    def test_a_reward_is_finite(self, reward):
        with pytest.raises(RewardError, match=r"trajectory 0-0/0: a reward must be finite"):
            Score(trajectory_id="0-0/0", outcome=Outcome.SCORED, reward=reward)

    @pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.DROPPED])
    def test_what_failed_or_was_dropped_has_no_reward(self, outcome):
        with pytest.raises(RewardError, match="has no reward"):
            Score(trajectory_id="0-0/0", outcome=outcome, reward=0.0)

    def test_what_is_scored_has_one(self):
        with pytest.raises(RewardError, match="without a reward"):
            Score(trajectory_id="0-0/0", outcome=Outcome.SCORED, reward=None)


def test_scores_come_back_as_written(tmp_path):
    written = [
        Score(
            trajectory_id="a/0", outcome=Outcome.SCORED, reward=-0.1, parts={"right": 1.0, "short": -1.1}, seconds=0.2
        ),
        Score(trajectory_id="a/1", outcome=Outcome.DROPPED, reward=None, error="verifier killed after 30 s \ud800"),
    ]
    info = write_scores(tmp_path / "part-00000.arrow", written, reward="math")
    assert read_scores(tmp_path / "part-00000.arrow", info) == written


def test_parts_are_scored_as_they_land(step, make_group, make_scores):
    rollouts = RolloutStore.open(step, step=0, policy_version=0, group_ids=["0-0", "0-1"], chains=2)
    rollouts.append([make_group("0-0")])
    store = ScoreStore(step, "math")
    assert [part.name for part in store.missing_parts(rollouts.manifest)] == ["part-00000.arrow"]
    store.append("part-00000.arrow", make_scores([make_group("0-0")]))
    assert store.missing_parts(rollouts.manifest) == []
    rollouts.append([make_group("0-1")])
    assert [part.name for part in store.missing_parts(rollouts.manifest)] == ["part-00001.arrow"]
    with pytest.raises(LedgerError, match=r"parts without scores: part-00001\.arrow; collection complete: False"):
        store.finish(rollouts.manifest)


def test_counts_are_of_every_requested_trajectory(step, rollouts, make_scores):
    store = score_all(step, rollouts, make_scores, rewards={"0-0/1": None})
    manifest = store.finish(rollouts)
    # 0-0: one right, one without a reward; 0-1: one right, one cut; 0-2: one failed, one right; 0-3: both given up.
    assert manifest.counts == {Outcome.SCORED: 3, Outcome.TRUNCATED: 1, Outcome.FAILED: 1, Outcome.DROPPED: 3}
    assert manifest.complete
    assert manifest == read_score_manifest(step)
    assert ScoreStore(step, "math").complete


@pytest.mark.parametrize("fault", ["missing", "doubled", "unknown"])
def test_there_is_one_score_per_trajectory(step, rollouts, make_scores, make_group, fault):
    scores = make_scores([make_group("0-1", stops=(FINISHED, CUT))])
    scores = {
        "missing": scores[:1],
        "doubled": [*scores, scores[1]],
        "unknown": [*scores, *make_scores([make_group("9")])],
    }
    with pytest.raises(ValueError, match="exactly one score per trajectory"):
        ScoreStore(step, "math").append("part-00000.arrow", scores[fault])


def test_an_outcome_that_does_not_follow_is_refused(step, rollouts, make_scores, make_group):
    scores = make_scores([make_group("0-1", stops=(FINISHED, FINISHED))])
    with pytest.raises(ValueError, match=r"trajectory 0-1/1 is truncated, not scored"):
        ScoreStore(step, "math").append("part-00000.arrow", scores)


def test_a_score_file_that_was_renamed_but_not_listed_is_kept(step, rollouts, make_scores):
    score_all(step, rollouts, make_scores)
    listed = read_score_manifest(step)
    step.score_manifest.write_text(listed.model_copy(update={"parts": listed.parts[:1]}).model_dump_json())
    store = ScoreStore(step, "math")
    assert store.manifest.parts == listed.parts
    assert store.missing_parts(rollouts) == []


def test_scores_of_other_rollouts_do_not_count(step, rollouts, make_scores, make_group):
    store = score_all(step, rollouts, make_scores)
    other = rollouts.parts[0].model_copy(update={"sha256": "0" * 64})
    changed = rollouts.model_copy(update={"parts": (other, *rollouts.parts[1:])})
    assert store.missing_parts(changed) == [other]


class TestRescoring:
    def test_another_reward_replaces_the_scores_and_keeps_the_old_ones(self, step, rollouts, make_scores):
        score_all(step, rollouts, make_scores, reward="math").finish(rollouts)
        files = {path.name: path.read_bytes() for path in step.rollouts.iterdir()}
        store = score_all(step, rollouts, make_scores, reward="other", rewards={"0-0/0": 0.25})
        store.finish(rollouts)
        assert read_score_manifest(step).reward == "other"
        rewards = {each.id: each.reward for group in load_scored_groups(step) for each in group.trajectories}
        assert rewards["0-0/0"] == 0.25
        old = step.path / "scores-math"
        assert sorted(os.listdir(old)) == ["MANIFEST.json", "part-00000.arrow", "part-00001.arrow"]
        assert {path.name: path.read_bytes() for path in step.rollouts.iterdir()} == files

    def test_until_it_is_complete_nobody_trains_on_it(self, step, rollouts, make_scores):
        score_all(step, rollouts, make_scores, reward="math").finish(rollouts)
        ScoreStore(step, "other")
        with pytest.raises(LedgerError, match="scoring is not complete"):
            load_scored_groups(step)

    def test_back_and_forth(self, step, rollouts, make_scores):
        for reward in ("a", "b", "a", "b"):
            score_all(step, rollouts, make_scores, reward=reward).finish(rollouts)
        assert sorted(path.name for path in step.path.iterdir()) == [
            "rollouts",
            "scores",
            "scores-a",
            "scores-a-2",
            "scores-b",
        ]


class TestLoadScoredGroups:
    def test_groups_are_joined_with_rewards_in_a_fixed_order(self, step, rollouts, make_scores):
        score_all(step, rollouts, make_scores, rewards={"0-0/0": 0.5, "0-1/1": None}).finish(rollouts)
        groups = load_scored_groups(step)
        assert [group.id for group in groups] == ["0-0", "0-1", "0-2"]
        assert [[each.reward for each in group.trajectories] for group in groups] == [[0.5, 1], [1, None], [None, 1]]

    def test_a_stage_that_is_not_complete_is_refused(self, step, make_group):
        RolloutStore.open(step, step=0, policy_version=0, group_ids=["0-0"], chains=2).append([make_group("0-0")])
        ScoreStore(step, "math")
        with pytest.raises(LedgerError, match="the collection is not complete"):
            load_scored_groups(step)

    def test_a_damaged_score_file_is_named(self, step, rollouts, make_scores):
        score_all(step, rollouts, make_scores).finish(rollouts)
        path = step.scores / "part-00001.arrow"
        path.write_bytes(path.read_bytes()[::-1])
        with pytest.raises(ShardError, match=r"scores/part-00001\.arrow does not match its checksum"):
            load_scored_groups(step)

    def test_an_evaluation_has_the_same_layout(self, tmp_path, make_group, make_scores):
        from agentfly_lib.store import RunDirectory

        directory = RunDirectory(tmp_path).evaluation(5, "greedy")
        store = RolloutStore.open(directory, step=5, policy_version=5, group_ids=["e-0"], chains=2)
        store.append([make_group("e-0")])
        manifest = store.finish()
        score_all(directory, manifest, make_scores).finish(manifest)
        assert [group.id for group in load_scored_groups(directory)] == ["e-0"]
