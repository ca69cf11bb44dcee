"""A full disk is an error that names the file and what to do, leaves nothing behind, and harms no weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("deepspeed")

from agentfly_lib.errors import ShardError  # noqa: E402
from agentfly_lib.training.disk import writing  # noqa: E402


def test_a_file_that_cannot_grow_is_named_and_the_same_learner_writes_it_later(
    tiny_model: Path, tmp_path: Path
) -> None:
    program = Path(__file__).with_name("full_disk_program.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tiny_model), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    for what, name in (("export", "policy.safetensors"), ("checkpoint", "000001")):
        kind, message = answers[what]
        assert kind == "ShardError"
        assert f"cannot write {tmp_path / name}: " in message
        assert "free space there" in message
    assert answers["left"] == []
    assert answers["export later"] == answers["checkpoint later"] == ["none", ""]
    assert answers["left later"] == ["000001", "policy.safetensors"]


def test_what_will_not_fit_is_not_begun(
    learner: Callable[..., Any], factories: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = learner()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    with pytest.raises(ShardError, match=r"policy\.safetensors: it needs 0 MiB and 1 MiB are free"):
        subject.export_weights(tmp_path / "policy.safetensors", 0)
    with pytest.raises(ShardError, match=r"000000: it needs 0 MiB and 1 MiB are free; free space"):
        factories.saved(subject, tmp_path / "runs" / "000000")
    assert list(tmp_path.iterdir()) == []
    # The state that is the same on every rank is written by the first, and weighed once.
    assert list(subject.engine.tensors()) != []
    monkeypatch.setattr("agentfly_lib.training.engine.dist.get_rank", lambda: 1)
    assert list(subject.engine.tensors()) == []


def test_errors_that_are_not_about_files_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"), writing(tmp_path):
        raise RuntimeError("CUDA error: out of memory")
