"""Checkpoints on disk: complete or not there, and proven before they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.errors import ShardError
from agentfly_lib.refs import CheckpointRef
from agentfly_lib.training.checkpoint import (
    CheckpointState,
    copy_model_files,
    newest_checkpoint,
    prune,
    read_state,
    seal,
    staging_directory,
    verify_checkpoint,
)


def state(version: int) -> CheckpointState:
    return CheckpointState(
        policy_version=version,
        nonfinite_in_row=0,
        ranks=1,
        zero_stage=0,
        dtype="float32",
        trained_with={"optim": {"lr": 1e-3}},
    )


def save(root: Path, version: int, content: bytes = b"weights") -> CheckpointRef:
    path = root / f"{version:06d}"
    (staging_directory(path) / "hf").mkdir(parents=True)
    (staging_directory(path) / "hf" / "model.safetensors").write_bytes(content)
    return seal(path, state(version))


def test_a_sealed_checkpoint_is_found_and_verified(tmp_path: Path) -> None:
    ref = save(tmp_path, 12)
    assert newest_checkpoint(tmp_path) == ref
    assert (ref.path, ref.policy_version) == (tmp_path / "000012", 12)
    verify_checkpoint(ref)
    assert read_state(ref.path) == state(12)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["000012"]


def test_a_checkpoint_of_another_format_says_so(tmp_path: Path) -> None:
    ref = save(tmp_path, 1)
    (ref.path / "state.json").write_text('{"format": 1, "step": 1}')
    with pytest.raises(ShardError, match=r"state\.json has format 1, this program reads format 2"):
        read_state(ref.path)


def test_the_newest_by_number(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "absent") is None
    assert newest_checkpoint(tmp_path) is None
    save(tmp_path, 999_999)
    newest = save(tmp_path, 1_000_000)
    assert newest_checkpoint(tmp_path) == newest


def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    ref = save(tmp_path, 1)
    unfinished = staging_directory(tmp_path / "000002")
    unfinished.mkdir()
    (unfinished / "state.json").write_text("{}")
    assert newest_checkpoint(tmp_path) == ref
    assert not unfinished.exists()


@pytest.mark.parametrize("damage", ["missing", "short", "no manifest", "broken manifest"])
def test_an_incomplete_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    weights, manifest = bad.path / "hf" / "model.safetensors", bad.path / "MANIFEST.json"
    if damage == "missing":
        weights.unlink()
    elif damage == "short":
        weights.write_bytes(b"weigh")
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text('{"format": 1')
    assert newest_checkpoint(tmp_path) == good


def test_one_changed_bit_names_the_file(tmp_path: Path) -> None:
    ref = save(tmp_path, 3)
    (ref.path / "hf" / "model.safetensors").write_bytes(b"weightt")
    with pytest.raises(ShardError, match=r"model\.safetensors does not match its checksum"):
        verify_checkpoint(ref)


def test_a_file_that_the_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    ref = save(tmp_path, 3)
    (ref.path / "deepspeed").mkdir()
    (ref.path / "deepspeed" / "stranger.pt").write_bytes(b"pickle")
    with pytest.raises(ShardError, match="stranger"):
        verify_checkpoint(ref)


def test_the_checkpoint_that_was_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    named = save(tmp_path, 3)
    other = save(tmp_path, 3, b"WEIGHTS")
    assert other.digest != named.digest
    verify_checkpoint(other)
    with pytest.raises(ShardError, match="not the manifest that was named"):
        verify_checkpoint(named)


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for version in (1, 2, 3, 10):
        save(tmp_path, version)
    assert [path.name for path in prune(tmp_path, 2)] == ["000002", "000001"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["000003", "000010"]


def test_prune_keeps_the_best_too(tmp_path: Path) -> None:
    rewards = {1: 0.9, 2: 0.5, 3: 0.9, 4: 0.9, 6: 0.1, 7: 2.0}  # of equal ones the newer; 7 was never saved
    for version in range(1, 7):
        save(tmp_path, version)
    assert [path.name for path in prune(tmp_path, 1, keep_best=2, rewards=rewards)] == ["000005", "000002", "000001"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["000003", "000004", "000006"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.policy_version == 6


def test_a_best_checkpoint_that_is_also_new_takes_one_place(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        save(tmp_path, version)
    prune(tmp_path, 1, keep_best=1, rewards={1: 0.1, 2: 0.2, 3: 0.3})
    assert [item.name for item in tmp_path.iterdir()] == ["000003"]


def test_model_files_are_copied_without_weights(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
    ):
        (source / name).write_text("x")
    copy_model_files(source, target)
    assert sorted(item.name for item in target.iterdir()) == ["chat_template.jinja", "config.json", "tokenizer.json"]
