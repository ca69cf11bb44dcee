"""What one flow run holds while it lasts: the locked run directory, the tracker, the display, Ray, engines, learner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs import RunConfig
from agentfly_lib.data.prepare import load_problems
from agentfly_lib.pipeline.background import Background
from agentfly_lib.pipeline.borrowing import Borrowing
from agentfly_lib.pipeline.cluster import RunCluster
from agentfly_lib.pipeline.exchange import Exchange
from agentfly_lib.pipeline.learning import Learning
from agentfly_lib.pipeline.lookahead import StepLine
from agentfly_lib.pipeline.schedule import Schedule
from agentfly_lib.pipeline.times import StepTimes
from agentfly_lib.refs import DatasetRef, ModelRef
from agentfly_lib.rollout import ChainSlots
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.recorded import actors_namespace
from agentfly_lib.tracking.tracker import Tracker
from agentfly_lib.types import Problem
from agentfly_lib.viewer.live import LiveDisplay, StageBar

if TYPE_CHECKING:
    from agentfly_lib.pipeline.engines import EngineKeeper

__all__ = ["Session"]


@dataclass(kw_only=True, eq=False)
class Session:
    """Everything that lasts as long as the flow run, each part made when somebody first asks for it."""

    config: RunConfig
    directory: RunDirectory
    tracker: Tracker
    display: LiveDisplay
    trains: bool
    """False for flows that only use a policy: there is no learner, and engines keep the weights they started with."""
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What is undone when the session ends, newest first."""
    background: Background = field(default_factory=Background)
    learning: Learning = field(default_factory=Learning)
    steps_bar: StageBar | None = None
    """Steps done, on the display."""
    _model: ModelRef | None = None
    _problems: dict[tuple[Path, str], Sequence[Problem]] = field(default_factory=dict)

    # What is trained, on what.

    @property
    def model(self) -> ModelRef:
        """The model directory; the flow resolves it first."""
        if self._model is None:
            raise RuntimeError("the flow must resolve the model before a task needs it")
        return self._model

    @model.setter
    def model(self, model: ModelRef) -> None:
        self._model = model

    @cached_property
    def agent(self) -> Agent:
        """The agent of the config, on the model's template."""
        return build_agent(self.config.agent, self.model.path)

    def problems(self, dataset: DatasetRef, split: Literal["train", "eval"]) -> Sequence[Problem]:
        """A split of the dataset, opened and checked once."""
        key = (dataset.path, split)
        if key not in self._problems:
            self._problems[key] = load_problems(dataset, split)
        return self._problems[key]

    # How far it is, and where its time goes.

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.config, self.directory)

    @cached_property
    def times(self) -> StepTimes:
        return StepTimes(ahead=self.config.rollout.max_policy_lag)

    @cached_property
    def line(self) -> StepLine:
        """In which the collections of the run begin."""
        return StepLine(self.schedule.first_open_step())

    @cached_property
    def slots(self) -> ChainSlots:
        """What all collections and evaluations of the run take their chains' places from."""
        return ChainSlots(self.config.rollout.max_concurrency)

    # What it works with.

    @cached_property
    def cluster(self) -> RunCluster:
        return RunCluster(self.config, namespace=self.namespace, trains=self.trains, closing=self.closing)

    @cached_property
    def namespace(self) -> str:
        """Of the run's actors."""
        return actors_namespace(self.directory)

    @cached_property
    def keeper(self) -> EngineKeeper:
        """What asks, replaces and lends the run's engines."""
        from agentfly_lib.pipeline.engines import EngineKeeper  # needs Ray, which preparing and scoring do without

        return EngineKeeper(
            self.config,
            model=self.model,
            namespace=self.namespace,
            trains=self.trains,
            exchange=self.exchange,
            learning=self.learning,
            times=self.times,
            background=self.background,
        )

    @cached_property
    def exchange(self) -> Exchange:
        return Exchange(self.directory, self.closing)

    @cached_property
    def borrowing(self) -> Borrowing:
        return Borrowing(self.config.run.name, self.closing)
