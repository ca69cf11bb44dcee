"""Where a run came from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agentfly_lib.tracking.provenance import provenance_tags


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    return tmp_path


def test_the_commit_and_whether_it_is_all_of_the_code(repository: Path):
    clean = provenance_tags(repository)
    (repository / "file").write_text("2")
    dirty = provenance_tags(repository)

    assert len(clean["mlflow.source.git.commit"]) == 40
    assert (clean["git.dirty"], dirty["git.dirty"]) == ("false", "true")


def test_outside_a_work_tree_there_is_no_commit(tmp_path: Path):
    tags = provenance_tags(tmp_path)

    assert "mlflow.source.git.commit" not in tags
    assert tags["version.mlflow"].startswith("3.")
    assert tags["host"]
