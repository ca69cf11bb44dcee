"""Statistics of an update: summed over micro-batches on the way, over ranks once at the end, named at the very end.

Names are `train/<what>/<stat>`. Only finite values leave; how many were not is `train/nonfinite_metrics/count`.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
import torch.distributed as dist

from agentfly_lib.training.losses import MAXIMA, SUMS, PolicyLoss
from agentfly_lib.training.samples import SampleReport

__all__ = ["LossMeter", "finite_only", "sample_metrics"]

_MEANS: dict[str, str] = {
    "policy_loss": "train/policy_loss/mean",
    "kl_loss": "train/kl_loss/mean",
    "value_loss": "train/value_loss/mean",
    "entropy": "train/entropy/mean",
    "ratio": "train/ratio/mean",
    "clipped_high": "train/clip_fraction_high/mean",
    "clipped_low": "train/clip_fraction_low/mean",
    "clipped_dual": "train/clip_fraction_dual/mean",
    "kl_old": "train/kl_old/mean",
    "kl_reference": "train/kl_reference/mean",
    "mismatch_k1": "train/mismatch_kl_k1/mean",
    "mismatch_k3": "train/mismatch_kl/mean",
    "correction": "train/correction_weight/mean",
    "correction_capped": "train/correction_capped/mean",
}

_OF_SAMPLES: dict[str, str] = {
    "reward_mean": "train/reward/mean",
    "reward_std": "train/reward/std",
    "advantage_mean": "train/advantage/mean",
    "advantage_std": "train/advantage/std",
    "advantage_max_abs": "train/advantage/max_abs",
}


class LossMeter:
    """Sums and maxima over all micro-batches of this rank; `reduce` makes them those of all ranks."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self._maxima = torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64, device=device)

    def add(self, loss: PolicyLoss) -> None:
        self._sums += loss.sums
        self._maxima = torch.maximum(self._maxima, loss.maxima)

    def reduce(self) -> dict[str, float]:
        """Collective: every rank must call it. Means are over trained tokens."""
        dist.all_reduce(self._sums)
        dist.all_reduce(self._maxima, op=dist.ReduceOp.MAX)
        sums: dict[str, float] = dict(zip(SUMS, self._sums.tolist(), strict=True))
        maxima: dict[str, float] = dict(zip(MAXIMA, self._maxima.tolist(), strict=True))
        tokens = sums["tokens"]
        if not tokens:
            return {}
        metrics = {name: sums[key] / tokens for key, name in _MEANS.items()}
        metrics["train/clip_fraction/mean"] = (sums["clipped_high"] + sums["clipped_low"]) / tokens
        metrics["train/ratio/max"] = maxima["ratio"]
        metrics["train/mismatch/max"] = maxima["mismatch"]
        metrics["train/effective_sample_size/fraction"] = (
            sums["weight"] ** 2 / (tokens * sums["weight_squared"]) if sums["weight_squared"] else math.nan
        )
        metrics["train/missing_logprobs/count"] = sums["missing_logprobs"]
        return metrics


def sample_metrics(report: SampleReport) -> dict[str, float]:
    """The counts of a step's samples, and its rewards and advantages, under their metric names."""
    values = asdict(report)
    metrics = {name: values.pop(key) for key, name in _OF_SAMPLES.items()}
    values.pop("missing_logprobs")  # counted by the loss
    return metrics | {f"train/{name}/count": float(value) for name, value in values.items()}


def finite_only(metrics: dict[str, float]) -> dict[str, float]:
    """Leaves out what is NaN or infinite, and says how many there were."""
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return finite | {"train/nonfinite_metrics/count": float(len(metrics) - len(finite))}
