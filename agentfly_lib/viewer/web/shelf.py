"""One run as the pages know it: its trajectories, its chat format, and what is known of its tokens."""

from __future__ import annotations

import logging
import threading
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentfly_lib.errors import AgentFlyError
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.learned import read_learned
from agentfly_lib.types import TrajectoryGroup
from agentfly_lib.viewer.text import TokenText
from agentfly_lib.viewer.web.catalog import Catalog
from agentfly_lib.viewer.web.charts import Curve
from agentfly_lib.viewer.web.spans import Knowledge

if TYPE_CHECKING:
    from agentfly_lib.configs import RunConfig

__all__ = ["Shelf"]

logger = logging.getLogger(__name__)
_KEPT_STEPS = 2


class Shelf:
    """A run that is shown."""

    def __init__(self, run: Path, *, load_chat: Callable[[], TokenText | None], prefix: str = "") -> None:
        """load_chat: gives what decodes tokens, when the first of them are shown; without one only messages are.
        prefix: of the run's pages."""
        self.run, self.prefix = run, prefix
        self._load_chat = load_chat
        self._loading = threading.Lock()
        self.catalog = Catalog(RunDirectory(run))
        self._advantages: OrderedDict[int, Mapping[str, list[Any]]] = OrderedDict()

    @cached_property
    def _chat(self) -> TokenText | None:
        return self._load_chat()

    @property
    def chat(self) -> TokenText | None:
        """What decodes its tokens: loaded at the first use, which may take seconds."""
        with self._loading:
            return self._chat

    @property
    def name(self) -> str:
        return self.run.resolve().name

    def config(self) -> RunConfig | None:
        """The run's config; None if it is not there, or not of this program any more."""
        from agentfly_lib.configs import load_config

        try:
            return load_config(self.catalog.run.config_file)
        except AgentFlyError as error:
            logger.info("%s has no config to show: %s", self.run, error)
            return None

    def tools(self) -> list[str]:
        """Names of the tools that its agent has; those of an environment are not among them.

        They stand in the run's config, which names all defaults: no config class is loaded for a list of names.
        """
        try:
            names = tomllib.loads(self.catalog.run.config_file.read_text(encoding="utf-8"))["agent"]["tools"]
            return sorted(name.rpartition(":")[2] for name in names)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.info("%s does not say which tools its agent has: %s", self.run, error)
            return []

    def curve(self, *, linked: bool = True) -> Curve:
        """Its rewards over steps; linked to the lists of the steps, where there is a server."""
        return Curve(
            train=self.catalog.rewards(),
            held_out=self.catalog.rewards("sampled"),
            link=f"{self.prefix}/?split=train&step=" if linked else None,
        )

    def knowledge(self, split: str, step: int, group: TrajectoryGroup) -> Knowledge:
        """What is known of a group's tokens: as the update saw them, else as the config gives their advantages."""
        if split != "train":
            return Knowledge()
        directory = self.catalog.run.step(step)
        try:
            learned = read_learned(directory, [each.id for each in group.trajectories])
        except AgentFlyError as error:
            logger.warning("what the update saw is not shown: %s", error)
            learned = {}
        return Knowledge(learned=learned, advantages={} if directory.learned_file.exists() else self._given(step))

    def _given(self, step: int) -> Mapping[str, list[Any]]:
        """Advantages of each segment's tokens, by trajectory; empty where they need a learner, or rewards."""
        if step not in self._advantages:
            from agentfly_lib.store.scored import load_scored_groups
            from agentfly_lib.training.samples import build_samples
            from agentfly_lib.training.staleness import fresh_groups

            config = self.config()
            if config is None or config.algorithm.needs_measurements:
                return {}
            by_trajectory: dict[str, list[Any]] = {}
            try:
                groups = fresh_groups(load_scored_groups(self.catalog.run.step(step)), config, step)
                built = build_samples(groups, config.algorithm)
            except AgentFlyError as error:
                logger.info("step %d has no advantages to show: %s", step, error)
                return {}
            for sample in built.samples:
                of_segments = by_trajectory.setdefault(sample.trajectory_id, [])
                of_segments += [[]] * (sample.segment - len(of_segments))  # segments that are not trained on
                of_segments.append(sample.advantages)
            self._advantages[step] = by_trajectory
            while len(self._advantages) > _KEPT_STEPS:
                self._advantages.popitem(last=False)
        return self._advantages[step]
