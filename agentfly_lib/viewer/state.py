"""What a running flow says of itself: one small file in the run directory, replaced about once a second.

`agentfly top` reads it. It is for a person's eyes: nothing depends on it, and it is not flushed to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentfly_lib.errors import ShardError

__all__ = [
    "STALE_SECONDS",
    "EngineView",
    "PoolView",
    "RankView",
    "RunState",
    "StageView",
    "read_state",
    "state_file",
    "write_state",
]

STALE_SECONDS = 30.0
"""A state that is older is no longer that of a running flow, or its machine stands still."""


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StageView(_View):
    """A stage in progress, such as `collect-000012`."""

    name: str
    completed: float
    total: float | None
    note: str = ""
    seconds: float = 0.0
    facts: Mapping[str, float] = Field(default_factory=dict)
    """Counts of its own: those of a collection are the fields of `CollectProgress`."""


class EngineView(_View):
    """An inference engine."""

    name: str
    policy_version: int = -1
    in_flight: int = 0
    """Requests that it has and has not answered."""
    tokens_per_second: float | None = None
    """Sampled since the last look; None at the first."""
    rss_mib: float = 0.0
    """Memory of its process."""
    error: str | None = None
    """Why it does not answer."""


class PoolView(_View):
    """A pool of resources: sandboxes, containers, environments."""

    name: str
    alive: int
    """With those being made or closed."""
    in_use: int
    waiting: int
    """Trajectories that wait for one."""
    made: int
    died: int
    failed: int
    """Could not be made."""


class RankView(_View):
    """A learner's process on this machine."""

    pid: int
    doing: str = ""
    """The call that runs, such as `update`."""
    rss_mib: float = 0.0
    gpu_mib: float | None = None
    """None where no GPU is used, or its driver cannot be asked."""


class RunState(_View):
    """One look at a flow run."""

    version: int = 1
    written: float
    """Seconds since the epoch."""
    began: float
    pid: int
    host: str
    run: str
    status: Literal["RUNNING", "FINISHED", "FAILED", "KILLED"] = "RUNNING"
    steps_done: int | None = None
    """None for flows that do not train."""
    steps: int | None = None
    generating: int | None = None
    """Chains that wait for an engine."""
    using_tools: int | None = None
    """Chains whose tool calls run."""
    stages: tuple[StageView, ...] = ()
    engines: tuple[EngineView, ...] = ()
    pools: tuple[PoolView, ...] = ()
    ranks: tuple[RankView, ...] = ()
    rows: tuple[tuple[str, Mapping[str, float]], ...] = ()
    """The newest lines of the table of steps: label and metrics."""
    warnings: tuple[str, ...] = ()
    """The newest ones."""

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(time.time() - self.written, 0.0)


def state_file(run: Path) -> Path:
    """Where the state of a run directory's flow lies."""
    return run / "live.json"


def write_state(run: Path, state: RunState) -> None:
    """Replaces the state; a reader sees the old one or the new one. One flow at a time writes into a run directory."""
    target = state_file(run)
    new = target.with_name(f".{target.name}")
    new.write_text(state.model_dump_json(), encoding="utf-8")
    new.replace(target)


def read_state(run: Path) -> RunState | None:
    """The newest state; None if none was written. Raises `ShardError` if the file is not what we write."""
    try:
        return RunState.model_validate_json(state_file(run).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ShardError(
            f"{state_file(run)} cannot be read ({error}); remove it, a running flow writes it again"
        ) from (error)
