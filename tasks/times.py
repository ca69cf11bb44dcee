"""Where a step's wall time goes. The parts are disjoint, so what they leave over is our own overhead.

    generation        at least one generation was in flight
    tools             none, but a tool call was
    reward            rewards were computed after the collection had ended (before that they cost no time)
    forward_backward  the learner computed: log-probs under the old policy, forward, backward, optimizer
    overhead          all else: shards, manifests, packing, weight sync, orchestration, tracking

Checkpoints and evaluations are stages of their own and belong to no step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from agentfly_lib.evaluation.rollout_metrics import rollout_metrics
from agentfly_lib.refs import StepReport
from agentfly_lib.rewards.stage import ScoredStep
from agentfly_lib.rollout import Collected
from agentfly_lib.types import TrajectoryGroup

__all__ = ["COMPUTE_PARTS", "StepTimes"]

COMPUTE_PARTS = ("forward_backward", "optimizer", "old_logprobs", "reference_logprobs")
"""Parts of an update in which the learner computes."""


class StepTimes:
    """Collects what the stages of the current step report."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._step = step
        self._started = perf_counter()
        self._outside = 0.0
        self._sync = 0.0
        self._collected: Collected | None = None
        self._collection_ended = self._started
        self._scored: ScoredStep | None = None
        self._notes: dict[str, float] = {}

    def note(self, metrics: dict[str, float]) -> None:
        """Other metrics of the current step."""
        self._notes |= metrics

    def count(self, name: str, number: float) -> None:
        """Adds to a metric of the current step."""
        self._notes[name] = self._notes.get(name, 0.0) + number

    def begin(self, step: int) -> None:
        """The step starts now."""
        self._begin(step)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Time that belongs to no step."""
        started = perf_counter()
        try:
            yield
        finally:
            self._outside += perf_counter() - started

    @contextmanager
    def syncing(self) -> Iterator[None]:
        """Weights go to the engines."""
        started = perf_counter()
        try:
            yield
        finally:
            self._sync += perf_counter() - started

    def collected(self, step: int, collected: Collected) -> None:
        """The collection of a step has ended."""
        if step == self._step:
            self._collected, self._collection_ended = collected, perf_counter()

    def scored(self, step: int, scored: ScoredStep) -> None:
        """The scoring of a step has ended."""
        if step == self._step:
            self._scored = scored

    @property
    def groups(self) -> list[TrajectoryGroup]:
        """The step's scored groups."""
        return self._scored.groups if self._scored else []

    def metrics(self, report: StepReport) -> dict[str, float]:
        """All metrics of the step that ends now."""
        wall = perf_counter() - self._started - self._outside
        generate = self._collected.seconds.generate if self._collected else 0.0
        tools = self._collected.seconds.tools if self._collected else 0.0
        collection = self._collected.seconds.total if self._collected else 0.0
        reward = self._scored.seconds_after(self._collection_ended) if self._scored else 0.0
        compute = sum(report.seconds.get(part, 0.0) for part in COMPUTE_PARTS)
        overhead = max(wall - generate - tools - reward - compute, 0.0)
        metrics = report.metrics | self._notes | rollout_metrics(self.groups)
        metrics |= self._collected.resources if self._collected else {}
        metrics |= {
            "time/step/seconds": wall,
            "time/generation/seconds": generate,
            "time/tools/seconds": tools,
            "time/reward/seconds": reward,
            "time/forward_backward/seconds": compute,
            "time/overhead/seconds": overhead,
            "time/overhead/fraction": overhead / wall if wall else 0.0,
            "time/collect/seconds": collection,
            "time/update/seconds": report.seconds.get("total", 0.0),
            "time/sync/seconds": self._sync,
        }
        if generate:
            metrics["rollout/tokens_per_second/mean"] = metrics.get("rollout/sampled_tokens/sum", 0.0) / generate
        groups = metrics.get("train/groups/count", 0.0)
        if groups:
            metrics["train/groups_with_signal/fraction"] = 1 - metrics.get("train/no_signal_groups/count", 0.0) / groups
        return metrics
