"""Where a step's wall time goes. The parts are disjoint, so what they leave over is our own overhead.

    generation        at least one generation was in flight
    tools             none, but a tool call was
    reward            rewards were computed while nothing else was going on (beside others they cost no time)
    forward_backward  the learner computed (log-probs under the old policy, forward, backward, optimizer), and none of
                      the above
    overhead          all else: shards, manifests, packing, weight sync, orchestration, tracking

Checkpoints and evaluations are stages of their own and belong to no step. The first step begins with its weight sync,
every other where the time of the one before is taken: what writes that one down belongs to it. Where collections
overlap with updates (`rollout.max_policy_lag`), those of later steps are at work in a step too, and what they generate
counts as generation of the step whose time it is. Beside the parts stand how long the step's own collection and update
took, how much of the update a collection was going on (`time/overlap`), and how long the engine had no request
(`time/engine_idle`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

from agentfly_lib.evaluation.rollout_metrics import rollout_metrics
from agentfly_lib.pipeline.activity import RunActivity
from agentfly_lib.refs import StepReport
from agentfly_lib.rewards.stage import ScoredStep
from agentfly_lib.rollout import Collected
from agentfly_lib.types import TrajectoryGroup

__all__ = ["COMPUTE_PARTS", "StepTimes"]

COMPUTE_PARTS = ("forward_backward", "optimizer", "old_logprobs", "reference_logprobs")
"""Parts of an update in which the learner computes."""


class StepTimes:
    """Collects what the stages of the current step, and of those that are collected ahead of it, report."""

    def __init__(self, ahead: int = 0) -> None:
        """`ahead` is how many further steps may be collected while one is current."""
        self.activity = RunActivity()
        self._ahead = ahead
        self._step = 0
        self._begun: int | None = None
        self._taken: tuple[int, dict[str, float]] | None = None
        self._sync = 0.0
        self._collected: dict[int, Collected] = {}
        self._scored: dict[int, ScoredStep] = {}
        self._notes: dict[int, dict[str, float]] = {}

    def begin(self, step: int) -> None:
        """The step starts now, or did when the one before ended; what is tried again takes its time too."""
        if step == self._begun:
            return
        if self._taken is None or self._taken[0] != self._begun:
            self.activity.restart()
        self._begun = step
        self._step, self._sync = step, 0.0
        for kept in (self._collected, self._scored, self._notes):
            for past in [each for each in kept if each < step]:
                del kept[past]

    def note(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Other metrics of a step, the current one if none is named."""
        step = self._step if step is None else step
        if self._awaited(step):
            self._notes.setdefault(step, {}).update(metrics)

    def count(self, name: str, number: float) -> None:
        """Adds to a metric of the current step."""
        self.note({name: self._notes.get(self._step, {}).get(name, 0.0) + number})

    def outside(self) -> AbstractContextManager[None]:
        """Time that belongs to no step."""
        return self.activity.outside()

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
        if self._awaited(step):
            self._collected[step] = collected

    def scored(self, step: int, scored: ScoredStep) -> None:
        """The scoring of a step has ended."""
        if self._awaited(step):
            self._scored[step] = scored

    @property
    def groups(self) -> list[TrajectoryGroup]:
        """The current step's scored groups."""
        scored = self._scored.get(self._step)
        return scored.groups if scored else []

    def metrics(self, report: StepReport) -> dict[str, float]:
        """All metrics of the step, which ends when they are first asked for."""
        if self._taken is not None and self._taken[0] == report.step:
            return self._taken[1]
        found = self._metrics(report)
        self._taken = report.step, found
        self.activity.restart()
        return found

    def _metrics(self, report: StepReport) -> dict[str, float]:
        collected, scored = self._collected.get(self._step), self._scored.get(self._step)
        now = self.activity.so_far()
        wall, generate, tools = now.wall, now.generation, now.tools
        reward = now.quiet_within(scored.busy) if scored else 0.0
        alone = now.update / now.updating if now.updating else 1.0  # the share of the update beside which nothing was
        compute = alone * sum(report.seconds.get(part, 0.0) for part in COMPUTE_PARTS)
        overhead = max(wall - generate - tools - reward - compute, 0.0)
        metrics = report.metrics | self._notes.get(self._step, {}) | rollout_metrics(self.groups)
        metrics |= collected.resources if collected else {}
        metrics |= {
            "time/step/seconds": wall,
            "time/generation/seconds": generate,
            "time/tools/seconds": tools,
            "time/reward/seconds": reward,
            "time/forward_backward/seconds": compute,
            "time/overhead/seconds": overhead,
            "time/overhead/fraction": overhead / wall if wall else 0.0,
            "time/collect/seconds": collected.seconds.total if collected else 0.0,
            "time/update/seconds": report.seconds.get("total", 0.0),
            "time/engine_idle/seconds": now.engine_idle,
            "time/engine_idle/fraction": now.engine_idle / wall if wall else 0.0,
            "time/sync/seconds": self._sync,
        }
        if self._ahead:
            metrics["time/overlap/seconds"] = now.overlap
            metrics["time/overlap/fraction"] = now.overlap / now.updating if now.updating else 0.0
        if generate:
            metrics["rollout/tokens_per_second/mean"] = metrics.get("rollout/sampled_tokens/sum", 0.0) / generate
        groups = metrics.get("train/groups/count", 0.0)
        if groups:
            metrics["train/groups_with_signal/fraction"] = 1 - metrics.get("train/no_signal_groups/count", 0.0) / groups
        return metrics

    def _awaited(self, step: int) -> bool:
        return self._step <= step <= self._step + self._ahead
