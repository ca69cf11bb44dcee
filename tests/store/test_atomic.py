"""A file is whole or absent, whatever the disk does."""

from __future__ import annotations

import errno
import os

import pytest

from agentfly_lib.errors import ShardError
from agentfly_lib.store import atomic


def test_writes_and_reads_back(tmp_path):
    atomic.write_json(tmp_path / "a" / "b" / "x.json", {"n": 1, "text": "é"})
    assert atomic.read_json(tmp_path / "a" / "b" / "x.json") == {"n": 1, "text": "é"}


def test_replaces_the_old_content_in_one_go(tmp_path):
    path = tmp_path / "x"
    atomic.write_bytes(path, b"old")
    with atomic.atomic_file(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert temporary.parent == path.parent
    assert path.read_bytes() == b"new"


def test_the_file_is_flushed_before_the_rename_and_the_directory_after_it(tmp_path, monkeypatch):
    calls = []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("dir" if _is_dir(fd) else "file"), real_fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("rename"), real_replace(*names)))
    atomic.write_bytes(tmp_path / "x", b"data")
    assert calls == ["file", "rename", "dir"]


def test_an_error_in_the_block_leaves_the_old_file_and_no_temporary(tmp_path):
    path = tmp_path / "x"
    atomic.write_bytes(path, b"old")
    with pytest.raises(KeyError), atomic.atomic_file(path) as temporary:  # noqa: PT012
        temporary.write_bytes(b"half")
        raise KeyError("stop")
    assert os.listdir(tmp_path) == ["x"]
    assert path.read_bytes() == b"old"


def test_a_write_that_the_kernel_splits_is_whole(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    atomic.write_bytes(tmp_path / "x", b"0123456789")
    assert (tmp_path / "x").read_bytes() == b"0123456789"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_is_a_clear_error_and_leaves_nothing_behind(tmp_path, monkeypatch, call):
    path = tmp_path / "part-00001.arrow"
    atomic.write_bytes(path, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(ShardError, match=r"cannot write .*part-00001\.arrow: the disk is full: free some space"):
        atomic.write_bytes(path, b"new")
    assert os.listdir(tmp_path) == ["part-00001.arrow"]
    assert path.read_bytes() == b"old"


def test_a_path_through_a_file_is_refused_with_the_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardError, match="part of the path is a file"):
        atomic.write_bytes(tmp_path / "file" / "x", b"")


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "part-00000.arrow").write_bytes(b"keep")
    (tmp_path / "part-00001.arrow.0123abcd.tmp").write_bytes(b"half")
    assert atomic.remove_leftovers(tmp_path) == 1
    assert os.listdir(tmp_path) == ["part-00000.arrow"]


def test_reading_names_the_file_that_is_missing_or_broken(tmp_path):
    with pytest.raises(ShardError, match=r"x\.json is missing"):
        atomic.read_json(tmp_path / "x.json")
    for text in ('{"half":', "[" * 100_000, "9" * 5000):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ShardError, match=r"x\.json is not valid JSON"):
            atomic.read_json(tmp_path / "x.json")


def _is_dir(descriptor: int) -> bool:
    return os.path.isdir(f"/proc/self/fd/{descriptor}")
