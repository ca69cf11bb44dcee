"""The rollouts of a step: what is durable counts, and counts once."""

from __future__ import annotations

import errno
import json
import os

import pytest

from agentfly_lib.errors import LedgerError, ShardError
from agentfly_lib.store import RolloutStore, iter_groups, read_rollout_manifest, write_part
from agentfly_lib.types import StopReason

GROUPS = ("0-0", "0-1", "0-2")


def open_store(directory, **changes):
    return RolloutStore.open(directory, **{"step": 0, "policy_version": 3, "group_ids": GROUPS, "chains": 2, **changes})


def groups_on_disk(step):
    manifest = read_rollout_manifest(step)
    return [group.id for _, groups in iter_groups(step, manifest) for group in groups]


def test_groups_are_durable_as_they_come(step, make_group):
    store = open_store(step)
    info = store.append([make_group("0-1")])
    assert info.name == "part-00000.arrow"
    assert info.rows == 2
    assert store.append([make_group("0-0")]).name == "part-00001.arrow"
    assert store.done == {"0-0", "0-1"}
    assert store.missing == ("0-2",)
    assert groups_on_disk(step) == ["0-1", "0-0"]
    manifest = read_rollout_manifest(step)
    assert manifest == store.manifest
    assert (manifest.problems, manifest.requested, manifest.trajectories) == (3, 6, 4)
    assert not manifest.complete


def test_a_collection_is_complete_when_every_group_is_there_or_dropped_with_a_reason(step, make_group):
    store = open_store(step)
    store.append([make_group("0-0"), make_group("0-1")])
    manifest = store.finish({"0-2": "stage time limit"})
    assert manifest.complete
    assert manifest == read_rollout_manifest(step)
    assert manifest.dropped_groups == {"0-2": "stage time limit"}
    again = open_store(step)
    assert again.complete
    assert again.missing == ()
    assert again.finish() == manifest


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        ({}, r"neither collected nor dropped \['0-2'\]"),
        ({"0-2": "x", "0-0": "x"}, r"both \['0-0'\]"),
        ({"0-2": "x", "9-9": "x"}, r"not asked for \['9-9'\]"),
    ],
)
def test_a_collection_that_does_not_add_up_is_not_complete(step, make_group, dropped, message):
    store = open_store(step)
    store.append([make_group("0-0"), make_group("0-1")])
    with pytest.raises(LedgerError, match=message):
        store.finish(dropped)
    assert not read_rollout_manifest(step).complete


def test_a_group_that_comes_again_is_ignored_and_counted(step, make_group):
    store = open_store(step)
    store.append([make_group("0-0", stops=(StopReason.FINISHED,) * 2)])
    assert store.append([make_group("0-0", stops=(StopReason.FAILED,) * 2)]) is None
    info = store.append([make_group("0-1"), make_group("0-0"), make_group("0-1")])
    assert info.groups == ("0-1",)
    assert store.manifest.duplicates == 3
    assert groups_on_disk(step) == ["0-0", "0-1"]
    (_, (first,)), _ = iter_groups(step, store.manifest)
    assert {each.stop for each in first.trajectories} == {StopReason.FINISHED}


def test_a_dropped_group_that_comes_late_is_ignored(step, make_group):
    store = open_store(step)
    store.append([make_group("0-0"), make_group("0-1")])
    store.finish({"0-2": "time limit"})
    assert store.append([make_group("0-2")]) is None
    assert groups_on_disk(step) == ["0-0", "0-1"]


@pytest.mark.parametrize(
    ("name", "stops", "message"),
    [
        ("7-7", (StopReason.FINISHED,) * 2, "group 7-7 was not asked for"),
        ("0-0", (StopReason.FINISHED,), r"group 0-0 has the chains \[0\], expected each of 0\.\.1"),
        ("0-0", (StopReason.FINISHED,) * 3, r"group 0-0 has the chains \[0, 1, 2\]"),
    ],
)
def test_groups_that_do_not_belong_are_refused(step, make_group, name, stops, message):
    with pytest.raises(ValueError, match=message):
        open_store(step).append([make_group(name, stops=stops)])


class TestRecovery:
    def test_a_part_that_was_renamed_but_not_listed_is_kept(self, step, make_group):
        open_store(step).append([make_group("0-0")])
        write_part(step.rollouts / "part-00001.arrow", [make_group("0-1")], step=0)
        store = open_store(step)
        assert store.done == {"0-0", "0-1"}
        assert store.manifest.attempt == 1
        assert store.append([make_group("0-2")]).name == "part-00002.arrow"
        assert groups_on_disk(step) == ["0-0", "0-1", "0-2"]

    def test_a_group_of_an_unlisted_part_that_is_listed_elsewhere_counts_once(self, step, make_group):
        open_store(step).append([make_group("0-0")])
        write_part(step.rollouts / "part-00001.arrow", [make_group("0-1"), make_group("0-0")], step=0)
        store = open_store(step)
        assert store.manifest.duplicates == 1
        assert store.manifest.trajectories == 4
        assert sorted(groups_on_disk(step)) == ["0-0", "0-1"]

    def test_unfinished_files_are_removed(self, step, make_group):
        open_store(step).append([make_group("0-0")])
        leftover = step.rollouts / "part-00001.arrow.abc.tmp"
        leftover.write_bytes(b"half")
        assert open_store(step).done == {"0-0"}
        assert not leftover.exists()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"policy_version": 4}, "policy_version 3 there, 4 asked for"),
            ({"chains": 4}, "chains 2 there, 4 asked for"),
            ({"step": 1}, "step 0 there, 1 asked for"),
            ({"group_ids": ("0-0",)}, "problems 3 there, 1 asked for"),
            ({"group_ids": ("0-0", "0-1", "0-9")}, "other groups there, for example 0-2"),
        ],
    )
    def test_another_collection_is_refused(self, step, make_group, changes, message):
        open_store(step).append([make_group("0-0")])
        with pytest.raises(ShardError, match=message):
            open_store(step, **changes)

    @pytest.mark.parametrize(
        ("version", "oldest", "goes_on"), [(5, 3, True), (5, 4, False), (2, 0, False), (3, 4, True)]
    )
    def test_a_later_version_goes_on_where_the_lag_allows_it(self, step, make_group, version, oldest, goes_on):
        open_store(step).append([make_group("0-1")])  # begun with version 3
        if goes_on:
            store = open_store(step, policy_version=version, oldest_version=oldest)
            assert (store.done, store.manifest.policy_version) == ({"0-1"}, 3)
        else:
            with pytest.raises(ShardError, match=f"policy_version 3 there, {version} asked for"):
                open_store(step, policy_version=version, oldest_version=oldest)

    def test_a_damaged_part_is_named(self, step, make_group):
        open_store(step).append([make_group("0-0")])
        part = step.rollouts / "part-00000.arrow"
        part.write_bytes(part.read_bytes()[:-9])
        with pytest.raises(ShardError, match=r"part-00000\.arrow is truncated"):
            open_store(step)

    def test_parts_without_a_manifest_are_not_taken_for_a_fresh_start(self, step, make_group):
        open_store(step).append([make_group("0-0")])
        step.rollout_manifest.unlink()
        with pytest.raises(ShardError, match=r"MANIFEST\.json is missing but 1 parts are there"):
            open_store(step)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", r"MANIFEST\.json is not valid JSON"),
            ('{"version": 2}', r"MANIFEST\.json is not one that this program can read \(version: "),
        ],
    )
    def test_a_manifest_that_cannot_be_read_is_named(self, step, text, message):
        open_store(step)
        step.rollout_manifest.write_text(text)
        with pytest.raises(ShardError, match=message):
            open_store(step)

    @pytest.mark.parametrize(
        "name", ["../part-00000.arrow", "/tmp/part-00000.arrow", "part-.arrow", "part-00000.arrow\n"]
    )
    def test_a_manifest_that_names_a_part_elsewhere_is_refused(self, step, make_group, name):
        open_store(step).append([make_group("0-0")])
        manifest = json.loads(step.rollout_manifest.read_text())
        manifest["parts"][0]["name"] = name
        step.rollout_manifest.write_text(json.dumps(manifest))
        with pytest.raises(ShardError, match=r"parts: .* is not the name of a part"):
            open_store(step)

    def test_an_unlisted_part_of_another_shape_is_refused(self, step, make_group):
        open_store(step)
        write_part(step.rollouts / "part-00000.arrow", [make_group("0-0", stops=(StopReason.FINISHED,))], step=0)
        with pytest.raises(ShardError, match=r"group 0-0 with chains \[0\] does not belong to this collection"):
            open_store(step)


class TestFullDisk:
    def test_while_writing_a_part(self, step, make_group, monkeypatch):
        store = open_store(step)
        store.append([make_group("0-0")])
        real = os.write

        def half_then_full(descriptor, data):
            if len(data) > 100:
                return real(descriptor, data[:100])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half_then_full)
            with pytest.raises(ShardError, match=r"cannot write .*part-00001\.arrow: the disk is full"):
                store.append([make_group("0-1")])
        assert sorted(os.listdir(step.rollouts)) == ["MANIFEST.json", "part-00000.arrow"]
        assert groups_on_disk(step) == ["0-0"]
        store.append([make_group("0-1")])
        assert groups_on_disk(step) == ["0-0", "0-1"]

    def test_while_writing_the_manifest(self, step, make_group, monkeypatch):
        store = open_store(step)
        real = os.replace

        def full(source, target):
            if str(target).endswith("MANIFEST.json"):
                raise OSError(errno.ENOSPC, "No space left on device")
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(ShardError, match=r"cannot write .*MANIFEST\.json: the disk is full"):
                store.append([make_group("0-0")])
        assert open_store(step).done == {"0-0"}
        assert groups_on_disk(step) == ["0-0"]


def test_the_manifest_says_what_a_person_wants_to_know(step, make_group):
    open_store(step).append([make_group("0-0")])
    value = json.loads(step.rollout_manifest.read_text())
    assert value["policy_version"] == 3
    assert value["parts"][0]["groups"] == ["0-0"]
    assert len(value["parts"][0]["sha256"]) == 64
