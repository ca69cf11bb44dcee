"""What a killed run had recorded and not sent is sent at the next start, whatever became of its old checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentfly_lib.errors import ShardError
from agentfly_lib.pipeline import record
from agentfly_lib.refs import CheckpointRef
from agentfly_lib.store.layout import RunDirectory


async def test_a_damaged_checkpoint_of_the_past_stops_no_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def checkpoint_at(path: Path) -> CheckpointRef:
        if path.name == "000010":
            raise ShardError(f"{path} has lost a file")
        return CheckpointRef(path=path, policy_version=int(path.name), digest="d")

    monkeypatch.setattr(record, "checkpoint_at", checkpoint_at)
    session: Any = SimpleNamespace(
        directory=RunDirectory(tmp_path),
        schedule=SimpleNamespace(first_open_step=lambda: 0, checkpoints=lambda: [10, 20]),
        tracker=SimpleNamespace(log_checkpoint=lambda path, *, version, digest: told.append(version)),
    )
    await record.catch_up(session)
    assert told == [20]
    assert "has lost a file" in caplog.text
