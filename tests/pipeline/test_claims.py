"""A run goes on with the data that it began with, or says that they have changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentfly_lib.errors import ConfigError, ShardError
from agentfly_lib.pipeline import imitation, preparation
from agentfly_lib.refs import DatasetRef, ImitatedRef
from agentfly_lib.store.layout import RunDirectory


@pytest.fixture
def session(tmp_path: Path) -> Any:
    return SimpleNamespace(directory=RunDirectory(tmp_path))


def problems(fingerprint: str, rows: int) -> DatasetRef:
    return DatasetRef(
        path=Path("datasets") / fingerprint,
        fingerprint=fingerprint,
        train_rows=rows,
        eval_rows=2,
        columns=("answer",),
        duplicates=0,
    )


def test_other_problems_are_refused(session: Any) -> None:
    for _ in range(2):
        preparation._claim_dataset(session, problems("a" * 64, 10))
    with pytest.raises(ConfigError, match=r"began with other problems \(10 and 2 held out, .* than there are now \(11"):
        preparation._claim_dataset(session, problems("b" * 64, 11))


def test_other_trajectories_are_refused(session: Any) -> None:
    for _ in range(2):
        imitation._claim(session, ImitatedRef(fingerprint="a" * 64, trajectories=8))
    with pytest.raises(ConfigError, match=r"began with 8 trajectories .* now there are 9 .*trained further"):
        imitation._claim(session, ImitatedRef(fingerprint="b" * 64, trajectories=9))


def test_a_damaged_file_is_named(session: Any) -> None:
    session.directory.dataset_file.write_text("{}")
    with pytest.raises(ShardError, match=r"dataset\.json is not one that this program can read \(fingerprint: Field"):
        imitation._claim(session, ImitatedRef(fingerprint="a", trajectories=8))
