"""What one flow run holds while it lasts: the locked run directory, the tracker, the display, and Ray."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs import RunConfig
from agentfly_lib.data.prepare import load_problems
from agentfly_lib.errors import ConfigError
from agentfly_lib.evaluation.report import EvaluationMode
from agentfly_lib.pipeline.lookahead import StepLine
from agentfly_lib.pipeline.times import StepTimes
from agentfly_lib.refs import DatasetRef, ModelRef
from agentfly_lib.resources import ResourceEngine, counted_since
from agentfly_lib.resources.pool import Pool
from agentfly_lib.rollout import ChainSlots
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.tracking.tracker import Tracker
from agentfly_lib.types import Problem
from agentfly_lib.viewer.live import LiveDisplay, StageBar

if TYPE_CHECKING:
    from agentfly_lib.pipeline.engines import EngineKeeper

__all__ = ["Session"]

logger = logging.getLogger(__name__)

_BACKGROUND_SECONDS = 20.0
_KILLED_DRAIN_SECONDS = 10.0


@dataclass
class Session:
    """Everything that lasts as long as the flow run."""

    config: RunConfig
    directory: RunDirectory
    tracker: Tracker
    display: LiveDisplay
    times: StepTimes = field(default_factory=StepTimes)
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What is undone when the session ends, newest first."""
    background: set[asyncio.Task[Any]] = field(default_factory=set)
    """Work that nobody waits for until the end, such as the page's progress bar."""
    model: ModelRef | None = None
    """The model directory, once the flow has resolved it."""
    progress_artifact: UUID | None = None
    """Progress bar on the Prefect page, once there is one."""
    trains: bool = True
    """False for flows that only use a policy: there is no learner, and engines keep the weights they started with."""
    steps_bar: StageBar | None = None
    """Steps done, on the display."""
    ends_actors: bool = False
    """The run's actors are ended with the session."""
    saving: int | None = None
    """Version of the checkpoint that is being written."""
    settles: bool = False
    """What is being written is waited for at the session's end."""
    clustered: bool = False
    version: int = 0
    """Version of the policy that the learner holds."""
    learning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever lets the learner do something: its ranks must hear of one thing after another."""
    _resources: ResourceEngine | None = None
    _counted: dict[str, float] = field(default_factory=dict)
    _problems: dict[tuple[Path, str], Sequence[Problem]] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """Of the run's Ray actors: one per run directory, so that runs of the same name do not meet on a cluster."""
        where = f"{platform.node()}:{self.directory.path.resolve()}"
        return f"agentfly-{self.config.run.name}-{hashlib.sha256(where.encode()).hexdigest()[:12]}"

    @property
    def requested(self) -> int:
        """Trajectories of one step."""
        return self.config.rollout.problems_per_step * self.config.rollout.chains

    @property
    def start_seconds(self) -> float:
        """Limit for starting engines and learner, and for loading weights into them."""
        return 2 * max(self.config.inference.start_timeout_seconds, self.config.learner.start_timeout_seconds)

    @property
    def queue_seconds(self) -> float:
        """Longest that a stage may have to wait for others that go on beside it: collections of earlier steps, an
        evaluation, an update. 0 where collections and updates take turns."""
        lag, stage = self.config.rollout.max_policy_lag, self.config.rollout.stage_timeout_seconds
        return (lag + 2) * stage + self.config.learner.update_timeout_seconds if lag else 0.0

    @property
    def collect_seconds(self) -> float:
        """Limit of one collection; an evaluation that goes on beside it, and is served first, takes none of it away."""
        rollout = self.config.rollout
        beside = len(self.evaluation_modes) if rollout.max_policy_lag else 0
        return (1 + beside) * rollout.stage_timeout_seconds

    @cached_property
    def line(self) -> StepLine:
        """In which the collections of the run begin."""
        return StepLine(self.first_open_step())

    @cached_property
    def slots(self) -> ChainSlots:
        """What all collections and evaluations of the run take their chains' places from."""
        return ChainSlots(self.config.rollout.max_concurrency)

    @property
    def resolved_model(self) -> ModelRef:
        if self.model is None:
            raise RuntimeError("the flow must resolve the model before a task needs it")
        return self.model

    @cached_property
    def agent(self) -> Agent:
        """The agent of the config, on the resolved model's template."""
        return build_agent(self.config.agent, self.resolved_model.path)

    def problems(self, dataset: DatasetRef, split: Literal["train", "eval"]) -> Sequence[Problem]:
        """A split of the dataset, opened and checked once."""
        key = (dataset.path, split)
        if key not in self._problems:
            self._problems[key] = load_problems(dataset, split)
        return self._problems[key]

    @cached_property
    def exchange(self) -> Path:
        """A folder in shared memory where there is one, for weights on their way to the engines.

        It has the same name in every start of this run, so that what a killed one left is used again.
        """
        memory = Path("/dev/shm")  # noqa: S108 - private by mode, and named after the run
        root = memory if memory.is_dir() else Path(tempfile.gettempdir())
        name = hashlib.sha256(str(self.directory.path.resolve()).encode()).hexdigest()[:16]
        path = root / f"agentfly-{name}"
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(f"{path} is not a private folder of this user; remove it, weights are exchanged there")
        self.closing.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    @cached_property
    def keeper(self) -> EngineKeeper:
        """What asks, replaces and lends the run's engines."""
        from agentfly_lib.pipeline.engines import EngineKeeper  # needs Ray, which preparing and scoring do without

        return EngineKeeper(self)

    @property
    def resources(self) -> ResourceEngine:
        """What trajectories borrow from: made at the first use and closed with the session, so that what took long to
        start serves one step after another."""
        if self._resources is None:
            self._resources = ResourceEngine(run=self.config.run.name)
            self.closing.push_async_callback(self._resources.aclose)
        return self._resources

    def resources_since(self, before: Mapping[str, float]) -> dict[str, float]:
        """What `resources` counted since `before`, or since this was asked last if that was later: collections that
        overlap then count nothing twice."""
        since = {name: max(value, self._counted.get(name, 0.0)) for name, value in before.items()}
        self._counted = self.resources.metrics()
        return counted_since(since, self._counted)

    @property
    def pools(self) -> Sequence[Pool]:
        """What is lent now; empty until something is."""
        return self._resources.pools if self._resources is not None else ()

    async def start_cluster(self) -> None:
        """Starts or joins Ray for the rest of the session; does nothing the second time."""
        from agentfly_lib.cluster import start_ray

        if self.clustered:
            return
        learner = self.config.learner
        cpus = self.config.inference.replicas + 1 + (learner.ranks * learner.threads if self.trains else 0)
        cluster = start_ray(self.config.ray, cpus_needed=cpus, namespace=self.namespace)
        try:
            await asyncio.to_thread(cluster.__enter__)
        except ConnectionError as error:
            raise ConfigError(
                f"ray.address = {self.config.ray.address}: no Ray cluster answers there ({error}); start it, or leave "
                "ray.address out to use this machine alone"
            ) from error
        self.clustered = True

        async def leave() -> None:
            self.clustered = False
            await asyncio.to_thread(cluster.__exit__, None, None, None)

        self.closing.push_async_callback(leave)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs something that may fail without harm beside the flow; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background work failed: %s: %s", type(error).__name__, error)

    def first_open_step(self) -> int:
        """The first step whose update is not recorded; the number of steps if all are."""
        return self.directory.first_open_step(self.config.run.steps)

    def finished_steps(self) -> list[int]:
        """Steps of a run whose every update is recorded.

        Raises `ConfigError` if the run is not finished: it would go on to train on whatever scores are there.
        """
        if self.first_open_step() < self.config.run.steps:
            raise ConfigError(
                f"{self.directory.path} is not finished ({self.first_open_step()} of {self.config.run.steps} steps); "
                "finish it first (agentfly train), because its updates read the scores that are there"
            )
        return self.directory.steps()

    def checkpoint_due(self, version: int) -> bool:
        """A checkpoint of this version is wanted and not there."""
        due = version > 0 and (version % self.config.checkpoint.every_steps == 0 or version == self.config.run.steps)
        return due and not self.directory.checkpoint(version).exists()

    def evaluation_due(self, version: int) -> bool:
        """An evaluation of this version is wanted and not complete."""
        every = self.config.evaluation.every_steps
        wanted = version in (0, self.config.run.steps) or (every > 0 and version % every == 0)
        return wanted and not self.directory.evaluation_metrics(version).exists()

    def checkpoints(self) -> list[int]:
        """Versions that have a checkpoint."""
        return [version for version in range(self.config.run.steps + 1) if self.directory.checkpoint(version).exists()]

    @property
    def evaluation_modes(self) -> tuple[EvaluationMode, ...]:
        return ("sampled", "greedy") if self.config.evaluation.greedy else ("sampled",)

    def finished(self) -> bool:
        """Every stage of the run is complete."""
        last = self.config.run.steps
        open_evaluation = any(self.evaluation_due(version) for version in range(last + 1))
        return self.first_open_step() == last and not self.checkpoint_due(last) and not open_evaluation
