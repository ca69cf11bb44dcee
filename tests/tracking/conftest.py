"""Trajectories to log, and a look at what MLflow got."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from agentfly_lib.types import FinishReason, Message, Problem, Segment, StopReason, Trajectory, Turn


def sampled(content: str, start: int, end: int, seconds: float) -> Turn:
    message: Message = {"role": "assistant", "content": content}
    return Turn(
        message=message,
        start=start,
        end=end,
        sampled=True,
        finish=FinishReason.STOP,
        policy_version=3,
        seconds=seconds,
    )


def observed(name: str, content: str, start: int, end: int, seconds: float) -> Turn:
    message: Message = {"role": "tool", "name": name, "tool_call_id": f"call-{name}", "content": content}
    return Turn(message=message, start=start, end=end, sampled=False, seconds=seconds)


@pytest.fixture
def problem() -> Problem:
    return Problem(id="p1", messages=({"role": "user", "content": "What is 7 times 5?"},), columns={"answer": "35"})


@pytest.fixture
def trajectory() -> Trajectory:
    """Two calls at once in the first turn, then the answer: 1 s, 0.5 s, 0.25 s."""
    turns = (
        sampled("<tool_call>a</tool_call><tool_call>b</tool_call>", 4, 8, 1.0),
        observed("calculator", "35", 8, 12, 0.5),
        observed("clock", "noon", 12, 12, 0.0),
        sampled("The answer is \\boxed{35}", 12, 15, 0.25),
    )
    mask = np.array([False] * 4 + [True] * 4 + [False] * 4 + [True] * 3)
    segment = Segment(
        token_ids=np.arange(15, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
        turns=turns,
    )
    return Trajectory(
        id="0-0/0",
        problem_id="p1",
        group_id="0-0",
        chain=0,
        segments=(segment,),
        stop=StopReason.FINISHED,
        reward=1.0,
        reward_parts={"format": 0.5},
    )


@pytest.fixture
def bare_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs that is not there yet, an empty current directory, no tracking server in the environment."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    return tmp_path / "runs"


@pytest.fixture
def root(bare_root: Path, empty_store: Path) -> Path:
    """A folder of runs with an MLflow store that is empty."""
    bare_root.mkdir()
    shutil.copy(empty_store, bare_root / "mlflow.db")
    return bare_root
