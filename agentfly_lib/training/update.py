"""One step's update on one rank: minibatch by minibatch, micro-batch by micro-batch.

Every token has its share in the loss of its whole minibatch, over all ranks, and the loss of a micro-batch is
multiplied by the number of ranks because gradients are averaged over them. So neither the packing nor the number of
ranks matters.

What is defined on more than a micro-batch is measured first, without a graph, and told to all ranks token by token:
advantages that depend on the learner (a penalty taken from the reward, a value head), and the ratios of trajectories
whose segments lie in several micro-batches.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.distributed as dist

from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import LearnerError
from agentfly_lib.training.aggregation import token_shares, trajectory_lengths
from agentfly_lib.training.engine import TrainingEngine
from agentfly_lib.training.losses import KL_ESTIMATORS, PolicyLoss, Trajectories, policy_loss, zero_loss
from agentfly_lib.training.metrics import LossMeter
from agentfly_lib.training.packing import Minibatch, StepPlan, to_batch
from agentfly_lib.training.policy import PolicyInputs
from agentfly_lib.training.samples import Measured, StepSamples
from agentfly_lib.training.schedule import learning_rate
from agentfly_lib.training.vision import Eyes
from agentfly_lib.types import TrainingSample

__all__ = ["Reference", "Seconds", "StepResult", "StepUpdate"]

Reference = Callable[[PolicyInputs, float], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Inputs and temperature to log-probs of the starting policy, and what else a policy gives; collective."""


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

    indices: tuple[int, ...]
    """Places of its samples in the step."""
    samples: list[TrainingSample]
    inputs: PolicyInputs
    trajectories: Trajectories
    shares: torch.Tensor  # [N]
    old: torch.Tensor | None = None
    """Log-probs at the start of the step; None where the policy has not moved yet."""
    seen: torch.Tensor | None = None
    """Log-probs in the forward pass that trained on it."""
    reference: torch.Tensor | None = None
    values: torch.Tensor | None = None
    """Of the value head, at the start of the step."""
    returns: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """What an update was made of, and how it went; the same on every rank."""

    metrics: dict[str, float]
    samples: StepSamples
    """With the advantages that were used."""
    old_logprobs: list[np.ndarray]
    """Of the trained tokens [N] of each sample, at the start of the step."""
    logprobs: list[np.ndarray]
    """The same in the forward pass that trained on them."""


@dataclass(kw_only=True)
class StepUpdate:
    """Runs the plan of one step and collects what is worth reporting."""

    engine: TrainingEngine
    reference: Reference | None
    config: RunConfig
    rank: int
    world: int
    """Of all ranks; `learner.sequence_parallel` of them share each row."""
    nonfinite_in_row: int
    """Optimizer updates in a row, up to now, that were skipped because something was not finite."""
    eyes: Eyes | None = None
    """Of a model that sees."""
    seconds: Seconds = field(default_factory=Seconds)

    def run(self, step_samples: StepSamples, plan: StepPlan, *, step: int) -> StepResult:
        """Every optimizer update of the step; collective.

        Raises `LearnerError` when too many updates in a row were not finite.
        """
        meter, samples = LossMeter(self.engine.device), step_samples.samples
        with self.seconds.part("pack"):
            work = [self._minibatch(samples, minibatch) for minibatch in plan.minibatches]
        self._measure_old(work, plan.minibatches, samples)
        self._measure_reference(work)
        if self.config.algorithm.needs_measurements:
            step_samples = self._measure_advantages(step_samples, work)

        norms: list[float] = []
        rate = skipped = 0.0
        for number, minibatch, items in zip(plan.numbers, plan.minibatches, work, strict=True):
            rate = learning_rate(self.config.optim, step=step, minibatch=number, total_steps=self.config.run.steps)
            self._measure_trajectories(minibatch, items, samples, moved=minibatch is not plan.minibatches[0])
            with self.seconds.part("forward_backward"):
                bad = [name for item, last in _marked(items) for name in self._accumulate(item, meter, last)]
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
        metrics = meter.reduce() | {
            "train/grad_norm/mean": sum(finite) / len(finite) if finite else math.nan,
            "train/grad_norm/max": max(finite, default=math.nan),
            "train/lr/last": rate,
            "train/updates/count": float(len(norms)),
            "train/skipped_updates/count": skipped,
            "train/microbatches/count": float(sum(len(items) for items in work)),
            "train/idle/fraction": plan.idle_fraction,
            **self._padding(work),
        }
        with self.seconds.part("record"):
            items = [item for of_minibatch in work for item in of_minibatch]
            seen = [(item, _given(item.seen)) for item in items]
            old = [(item, _given(item.seen if item.old is None else item.old)) for item in items]
            return StepResult(
                metrics=metrics,
                samples=step_samples,
                old_logprobs=self._tell(samples, old),
                logprobs=self._tell(samples, seen),
            )

    @property
    def _row(self) -> int:
        """Which of the rows that are computed at the same time is this rank's."""
        return self.rank // self.config.learner.sequence_parallel

    @property
    def _speaks(self) -> bool:
        """Of the ranks that share a row and know the same, one tells the others."""
        return self.rank % self.config.learner.sequence_parallel == 0

    @property
    def _temperature(self) -> float:
        return self.config.rollout.sampling.temperature

    def _minibatch(self, samples: Sequence[TrainingSample], minibatch: Minibatch) -> list[_Work]:
        """This rank's micro-batches of an optimizer update."""
        lengths = trajectory_lengths([samples[index] for index in minibatch.samples])
        shares = token_shares(lengths, self.config)
        return [self._work(samples, indices, lengths, shares) for indices in minibatch.ranks[self._row]]

    def _work(
        self,
        samples: Sequence[TrainingSample],
        indices: tuple[int, ...],
        lengths: Mapping[str, int],
        shares: Mapping[str, float],
    ) -> _Work:
        chosen, device = [samples[index] for index in indices], self.engine.device
        names = list(dict.fromkeys(sample.trajectory_id for sample in chosen))
        counts = [sample.num_loss_tokens for sample in chosen]
        index = np.repeat([names.index(sample.trajectory_id) for sample in chosen], counts).astype(np.int64)
        per_token = np.repeat([shares[sample.trajectory_id] for sample in chosen], counts).astype(np.float32)
        return _Work(
            indices=indices,
            samples=chosen,
            inputs=PolicyInputs(
                to_batch(chosen, indices), device, self.eyes, sequence_parallel=self.config.learner.sequence_parallel
            ),
            trajectories=Trajectories(
                index=torch.from_numpy(index).to(device),
                lengths=torch.tensor([lengths[name] for name in names], dtype=torch.float32, device=device),
            ),
            shares=torch.from_numpy(per_token).to(device),
        )

    def _measure_old(
        self, work: Sequence[Sequence[_Work]], minibatches: Sequence[Minibatch], samples: Sequence[TrainingSample]
    ) -> None:
        """Log-probs, and values, at the start of the step. The first minibatch meets that policy in its own forward
        pass, and is measured only if more than one micro-batch at a time depends on it."""
        first = self.config.algorithm.needs_measurements or (
            bool(minibatches) and self._whole_trajectories and _splits(minibatches[0], samples)
        )
        with self.seconds.part("old_logprobs"):
            for items in work if first else work[1:]:
                for item in items:
                    logprobs, _, values = self.engine.measure(item.inputs, self._temperature)
                    item.old, item.values = logprobs, values if self.config.algorithm.has_values else None

    @torch.no_grad()
    def _measure_reference(self, work: Sequence[Sequence[_Work]]) -> None:
        if self.reference is None:
            return
        with self.seconds.part("reference_logprobs"):
            for items in work:
                for item in items:
                    self.engine.beats += 1
                    item.reference = self.reference(item.inputs, self._temperature)[0]

    def _measure_advantages(self, step_samples: StepSamples, work: Sequence[Sequence[_Work]]) -> StepSamples:
        """Advantages that follow from penalties and values: the same on every rank, whoever measured them."""
        kl, samples = self.config.algorithm.kl, step_samples.samples
        items = [item for of_minibatch in work for item in of_minibatch]
        with self.seconds.part("advantages"):
            penalties = values = None
            if self.reference is not None and kl.place == "reward":
                estimate = KL_ESTIMATORS[kl.estimator]
                penalties = self._tell(
                    samples,
                    [(item, kl.coefficient * estimate(_given(item.old), _given(item.reference))) for item in items],
                )
            if self.config.algorithm.has_values:
                values = self._tell(samples, [(item, _given(item.values)) for item in items])
            measurements = [
                Measured(
                    penalties=None if penalties is None else penalties[index],
                    values=None if values is None else values[index],
                )
                for index in range(len(samples))
            ]
            step_samples, returns = step_samples.measured(measurements)
            for item in items:
                if item.inputs.num_loss_tokens:
                    chosen = [step_samples.samples[index] for index in item.indices]
                    item.inputs.advantages = self._tensor([each.advantages[each.loss_mask] for each in chosen])
                    item.returns = self._tensor([returns[index] for index in item.indices])
        return step_samples

    def _measure_trajectories(
        self, minibatch: Minibatch, items: Sequence[_Work], samples: Sequence[TrainingSample], *, moved: bool
    ) -> None:
        """Sums over trajectories of which a micro-batch holds only some segments, if the loss depends on them.

        Collective: every rank comes to the same decision, and measures its own micro-batches.
        """
        if not (self._whole_trajectories and _splits(minibatch, samples)):
            return
        with self.seconds.part("old_logprobs"):
            ratios: dict[str, float] = defaultdict(float)
            deltas: dict[str, float] = defaultdict(float)
            for item in items:
                old = _given(item.old)
                if moved and self.config.algorithm.loss.type == "gspo":
                    now = self.engine.measure(item.inputs, self._temperature)[0]
                    _add(ratios, item, now - old)
                _add(deltas, item, torch.nan_to_num(old - item.inputs.recorded, nan=0.0))
            for item in items:
                names = list(dict.fromkeys(sample.trajectory_id for sample in item.samples))
                item.trajectories = replace(
                    item.trajectories,
                    log_ratio_sums=self._doubles([ratios[name] for name in names]),
                    delta_sums=self._doubles([deltas[name] for name in names]),
                )

    @property
    def _whole_trajectories(self) -> bool:
        """The loss of a token depends on all tokens of its trajectory."""
        algorithm = self.config.algorithm
        return algorithm.loss.type == "gspo" or algorithm.correction.type not in ("none", "tis_token")

    def _padding(self, work: Sequence[Sequence[_Work]]) -> dict[str, float]:
        """Share of computed token slots that hold no token, in rows and in the blocks of the padded attention."""
        items = [item for of_minibatch in work for item in of_minibatch] if self._speaks else []
        tokens = sum(len(sample) for item in items for sample in item.samples)
        slots = sum(item.inputs.token_ids.shape[1] for item in items)
        attended = sum(item.inputs.documents.slots for item in items)
        sums = self._doubles([tokens, slots, attended])
        dist.all_reduce(sums)
        tokens, slots, attended = sums.tolist()
        return {
            "train/padding/fraction": 1 - tokens / slots if slots else 0.0,
            "train/attention_padding/fraction": 1 - tokens / attended if attended else 0.0,
        }

    def _tell(
        self, samples: Sequence[TrainingSample], measured: Sequence[tuple[_Work, torch.Tensor]]
    ) -> list[np.ndarray]:
        """Numbers for the trained tokens of this rank's micro-batches as those of all samples, on every rank."""
        ends = np.cumsum([sample.num_loss_tokens for sample in samples])
        everything = np.zeros(int(ends[-1]) if len(ends) else 0)
        for item, numbers in measured:
            if not item.inputs.num_loss_tokens or not self._speaks:
                continue
            first = 0
            for index in item.indices:
                count = samples[index].num_loss_tokens
                everything[ends[index] - count : ends[index]] = numbers[first : first + count].cpu().numpy()
                first += count
        shared = torch.from_numpy(everything).to(self.engine.device)
        dist.all_reduce(shared)  # every place is filled by one rank, so the sum is exact
        return np.split(shared.cpu().numpy(), ends[:-1]) if samples else []

    def _accumulate(self, item: _Work, meter: LossMeter, last: bool) -> list[str]:
        """Forward and backward of one micro-batch; the ids of trajectories whose loss is not finite."""
        self.engine.begin(last=last)
        logprobs, entropy, values = self.engine.forward(item.inputs, self._temperature)
        item.seen = logprobs.detach()
        loss = self._loss(item, logprobs, entropy, values)
        if self._speaks:
            meter.add(loss)
        self.engine.backward(loss.loss * self.world, last=last)
        if bool(torch.isfinite(loss.loss)):
            return []
        return _culprits(item.samples, loss)

    def _loss(self, item: _Work, logprobs: torch.Tensor, entropy: torch.Tensor, values: torch.Tensor) -> PolicyLoss:
        if not item.inputs.num_loss_tokens:
            return zero_loss(logprobs, values)
        return policy_loss(
            logprobs,
            old=logprobs.detach() if item.old is None else item.old,
            recorded=item.inputs.recorded,
            advantages=item.inputs.advantages,
            shares=item.shares,
            algorithm=self.config.algorithm,
            trajectories=item.trajectories,
            reference=item.reference,
            entropy=entropy,
            values=values,
            old_values=item.values,
            returns=item.returns,
        )

    def _tensor(self, parts: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(self.engine.device)

    def _doubles(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.engine.device)

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


def _splits(minibatch: Minibatch, samples: Sequence[TrainingSample]) -> bool:
    """Some trajectory has samples in more than one micro-batch."""
    homes: dict[str, int] = {}
    microbatches = [microbatch for rank in minibatch.ranks for microbatch in rank]
    return any(
        homes.setdefault(samples[index].trajectory_id, home) != home
        for home, microbatch in enumerate(microbatches)
        for index in microbatch
    )


def _add(sums: dict[str, float], item: _Work, values: torch.Tensor) -> None:
    """Adds each token's value to its trajectory's sum."""
    if item.inputs.num_loss_tokens:
        names = list(dict.fromkeys(sample.trajectory_id for sample in item.samples))
        for name, value in zip(names, item.trajectories.sums(values).tolist(), strict=True):
            sums[name] += value


def _given(values: torch.Tensor | None) -> torch.Tensor:
    if values is None:
        raise RuntimeError("what is needed of a micro-batch was not measured")
    return values


def _culprits(samples: Sequence[TrainingSample], loss: PolicyLoss) -> list[str]:
    bad = (~torch.isfinite(loss.per_token)).tolist()
    names, first = [], 0
    for sample in samples:
        last = first + sample.num_loss_tokens
        if any(bad[first:last]):
            names.append(sample.trajectory_id)
        first = last
    return names
