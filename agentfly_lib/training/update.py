"""One step's update on one rank: minibatch by minibatch, micro-batch by micro-batch.

The loss of a micro-batch is divided by the trained tokens of its whole minibatch, over all ranks, and multiplied by
the number of ranks because gradients are averaged over them. So neither the packing nor the number of ranks matters.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import LearnerError
from agentfly_lib.training.engine import TrainingEngine
from agentfly_lib.training.losses import PolicyLoss, policy_loss, zero_loss
from agentfly_lib.training.metrics import LossMeter
from agentfly_lib.training.packing import Minibatch, StepPlan, to_batch
from agentfly_lib.training.policy import PolicyInputs, PolicyModule
from agentfly_lib.training.schedule import learning_rate
from agentfly_lib.types import TrainingSample

__all__ = ["Seconds", "StepUpdate"]


class Seconds:
    """Wall seconds by part."""

    def __init__(self) -> None:
        self.by_part: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.by_part[name] += time.perf_counter() - start


@dataclass(kw_only=True)
class _Work:
    """One micro-batch of this rank."""

    samples: list[TrainingSample]
    inputs: PolicyInputs
    old: torch.Tensor | None = None
    """Log-probs at the start of the step; None where the policy has not moved yet."""
    reference: torch.Tensor | None = None


@dataclass(kw_only=True)
class StepUpdate:
    """Runs the plan of one step and collects what is worth reporting."""

    engine: TrainingEngine
    reference: PolicyModule | None
    config: RunConfig
    rank: int
    world: int
    nonfinite_in_row: int
    """Optimizer updates in a row, up to now, that were skipped because something was not finite."""
    seconds: Seconds = field(default_factory=Seconds)

    def run(self, samples: Sequence[TrainingSample], plan: StepPlan, *, step: int) -> dict[str, float]:
        """Every optimizer update of the step; collective. Returns the metrics of the update itself.

        Raises `LearnerError` when too many updates in a row were not finite.
        """
        meter = LossMeter(self.engine.device)
        with self.seconds.part("pack"):
            work = [self._work(samples, minibatch) for minibatch in plan.minibatches]
        with self.seconds.part("old_logprobs"):
            for later in work[1:]:
                for item in later:
                    item.old = self.engine.measure(item.inputs, self._temperature)[0]
        self._measure_reference(work)

        norms: list[float] = []
        rate = skipped = 0.0
        for number, minibatch, items in zip(plan.numbers, plan.minibatches, work, strict=True):
            rate = learning_rate(self.config.optim, step=step, minibatch=number, total_steps=self.config.run.steps)
            with self.seconds.part("forward_backward"):
                bad = [name for item, last in _marked(items) for name in self._accumulate(item, minibatch, meter, last)]
                veto = self._anywhere(bool(bad))
            with self.seconds.part("optimizer"):
                applied, norm = self.engine.step(rate, veto=veto)
            norms.append(norm)
            self.nonfinite_in_row = 0 if applied else self.nonfinite_in_row + 1
            skipped += not applied
            if self.nonfinite_in_row >= self.config.learner.max_nonfinite_steps:
                members = [samples[index].trajectory_id for index in minibatch.samples]
                raise LearnerError(self._nonfinite(step, bad, members))
        finite = [norm for norm in norms if math.isfinite(norm)]
        return meter.reduce() | {
            "train/grad_norm/mean": sum(finite) / len(finite) if finite else math.nan,
            "train/grad_norm/max": max(finite, default=math.nan),
            "train/lr/last": rate,
            "train/updates/count": float(len(norms)),
            "train/skipped_updates/count": skipped,
            "train/microbatches/count": float(sum(len(items) for items in work)),
            "train/idle/fraction": plan.idle_fraction,
        }

    @property
    def _temperature(self) -> float:
        return self.config.rollout.sampling.temperature

    def _work(self, samples: Sequence[TrainingSample], minibatch: Minibatch) -> list[_Work]:
        items = []
        for indices in minibatch.ranks[self.rank]:
            chosen = [samples[index] for index in indices]
            items.append(_Work(samples=chosen, inputs=PolicyInputs(to_batch(chosen, indices), self.engine.device)))
        return items

    @torch.no_grad()
    def _measure_reference(self, work: Sequence[Sequence[_Work]]) -> None:
        if self.reference is None:
            return
        with self.seconds.part("reference_logprobs"):
            for items in work:
                for item in items:
                    item.reference = self.reference(item.inputs, self._temperature)[0]

    def _accumulate(self, item: _Work, minibatch: Minibatch, meter: LossMeter, last: bool) -> list[str]:
        """Forward and backward of one micro-batch; the ids of trajectories whose loss is not finite."""
        self.engine.begin(last=last)
        logprobs, entropy = self.engine.forward(item.inputs, self._temperature)
        loss = self._loss(item, logprobs, entropy, minibatch)
        meter.add(loss)
        self.engine.backward(loss.loss * self.world, last=last)
        if bool(torch.isfinite(loss.loss)):
            return []
        return _culprits(item.samples, loss)

    def _loss(self, item: _Work, logprobs: torch.Tensor, entropy: torch.Tensor, minibatch: Minibatch) -> PolicyLoss:
        if not item.inputs.num_loss_tokens:
            return zero_loss(logprobs)
        return policy_loss(
            logprobs,
            old=logprobs.detach() if item.old is None else item.old,
            recorded=item.inputs.recorded,
            advantages=item.inputs.advantages,
            denominator=minibatch.num_loss_tokens,
            algorithm=self.config.algorithm,
            reference=item.reference,
            entropy=entropy,
        )

    def _anywhere(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        total = torch.tensor(float(flag), device=self.engine.device)
        dist.all_reduce(total)
        return bool(total)

    def _nonfinite(self, step: int, bad: list[str], members: list[str]) -> str:
        """Collective: the trajectories at fault may be another rank's."""
        of_ranks: list[list[str]] = [[] for _ in range(self.world)]
        dist.all_gather_object(of_ranks, bad)
        named = [name for of_rank in of_ranks for name in of_rank]
        what = "the loss of" if named else "the gradient of a batch with"
        names = list(dict.fromkeys(named or members))
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return (
            f"step {step}: {self.nonfinite_in_row} updates in a row were not finite and were skipped; in the last one "
            f"{what} {listed} is not finite. Lower optim.lr, or look at these trajectories with `agentfly show`"
        )


def _marked(items: Sequence[_Work]) -> Iterator[tuple[_Work, bool]]:
    for place, item in enumerate(items):
        yield item, place == len(items) - 1


def _culprits(samples: Sequence[TrainingSample], loss: PolicyLoss) -> list[str]:
    bad = (~torch.isfinite(loss.per_token)).tolist()
    names, first = [], 0
    for sample in samples:
        last = first + sample.num_loss_tokens
        if any(bad[first:last]):
            names.append(sample.trajectory_id)
        first = last
    return names
