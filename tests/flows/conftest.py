"""The command line as a person runs it, on one root for all flow tests so that Prefect's database is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_SECONDS = 280


@dataclass(frozen=True)
class Command:
    """What a command did."""

    status: int
    output: str
    errors: str


Run = Callable[..., Command]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flows") / "runs"


@pytest.fixture(scope="session")
def agentfly() -> Run:
    """Runs `agentfly ARGUMENTS...`; keyword `environment` adds variables (None removes one)."""

    def run(*arguments: str | Path, environment: dict[str, str | None] | None = None) -> Command:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **(environment or {})}
        done = subprocess.run(
            [sys.executable, "-m", "agentfly_lib", *map(str, arguments)],
            cwd=REPOSITORY,
            env={name: value for name, value in variables.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return Command(done.returncode, done.stdout, done.stderr)

    return run


@dataclass(frozen=True)
class FinishedRun:
    directory: Path
    command: Command


@pytest.fixture(scope="session")
def ci_run(agentfly: Run, root: Path) -> FinishedRun:
    """The recipe `ci`, from start to end."""
    command = agentfly("train", "recipes/ci.toml", "--set", f"run.root={root}")
    assert command.status == 0, command.output[-2000:] + command.errors[-4000:]
    return FinishedRun(root / "ci", command)
