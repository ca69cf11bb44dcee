"""Where the shared data lie, and small helpers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real public data; a test that needs it is skipped where it is absent."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("AGENTFLY_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; set AGENTFLY_TEST_DATA")
    return folder


@pytest.fixture
def jsonl(tmp_path) -> Callable[..., Path]:
    """`jsonl([{...}, "raw line"], name=...)` writes a file, one row per line."""

    def write(rows: list[Any], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write
