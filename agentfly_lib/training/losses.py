"""The objective, over trained tokens only: a clipped policy loss, an optional KL penalty, and what is worth knowing.

How tokens are summed up (`AGGREGATIONS`) and how the divergence is estimated (`KL_ESTIMATORS`) is looked up under the
name that the config gives; a further one is a function and an entry.

Notation, per token: `l` log-prob under the policy being trained, `o` under the trainer's policy at the start of the
step, `mu` recorded by the engine at sampling time, `f` under the frozen reference, `A` advantage; r = exp(l - o).

    L = max(-A r, -A clip(r, 1 - low, 1 + high))               arXiv 1707.06347, clip-higher arXiv 2503.14476
    A < 0:  L = min(L, -dual A)                                arXiv 1912.09729
    L <- min(exp(o - mu), cap) L                               truncated importance sampling, detached
    L <- L + beta r (exp(x) - x - 1),  x = f - l               k3 with the ratio, whose gradient is unbiased
    loss = sum(L) / N                                          N: trained tokens of the whole optimizer batch

Tokens that were not sampled never come here: callers select the trained ones first. So nothing about a masked token
can reach the loss, and its gradient is exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from agentfly_lib.configs import AlgorithmConfig, TisTokenConfig

__all__ = ["AGGREGATIONS", "KL_ESTIMATORS", "MAXIMA", "SUMS", "PolicyLoss", "policy_loss", "zero_loss"]

LOG_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before `exp`: far outside of any clip range, and never an overflow."""

SUMS = (
    "tokens",
    "policy_loss",
    "kl_loss",
    "entropy",
    "ratio",
    "clipped_high",
    "clipped_low",
    "clipped_dual",
    "kl_old",
    "kl_reference",
    "mismatch_k1",
    "mismatch_k3",
    "weight",
    "weight_squared",
    "correction",
    "correction_capped",
    "missing_logprobs",
)
"""What is summed over tokens, in the order of `PolicyLoss.sums`."""

MAXIMA = ("ratio", "mismatch")
"""What the largest value is kept of, in the order of `PolicyLoss.maxima`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss of one micro-batch and its statistics."""

    loss: torch.Tensor  # []  carries the graph; already divided by the global denominator
    per_token: torch.Tensor  # [N] detached
    sums: torch.Tensor  # [len(SUMS)] float64
    maxima: torch.Tensor  # [len(MAXIMA)] float64


def token_mean(losses: torch.Tensor, denominator: float) -> torch.Tensor:
    """The sum over a micro-batch's trained tokens, divided by the number of them in the whole optimizer batch."""
    return losses.sum() / max(denominator, 1.0)


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """exp(x) - x - 1 with x = f - l, per token: never negative (http://joschu.net/blog/kl-approx.html)."""
    difference = (reference - logprobs).clamp(-LOG_LIMIT, LOG_LIMIT)
    return difference.exp() - difference - 1


AGGREGATIONS: Mapping[str, Callable[[torch.Tensor, float], torch.Tensor]] = MappingProxyType({"token_mean": token_mean})
"""From the losses of a micro-batch's trained tokens [N] to its share of the loss, by `algorithm.aggregation`."""

KL_ESTIMATORS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = MappingProxyType({"k3": k3})
"""Divergence per token [N] from log-probs and those of the reference, by `algorithm.kl.estimator`."""


def policy_loss(
    logprobs: torch.Tensor,
    *,
    old: torch.Tensor,
    recorded: torch.Tensor,
    advantages: torch.Tensor,
    denominator: float,
    algorithm: AlgorithmConfig,
    reference: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
) -> PolicyLoss:
    """Loss of the trained tokens of one micro-batch; every tensor is [N] float32, only `logprobs` has a gradient.

    `recorded` may hold NaN where the engine gave no log-prob: that token gets the correction weight 1 and is counted.
    `denominator` is the number of trained tokens in the whole optimizer batch, over all ranks and micro-batches.
    """
    clip = algorithm.clip
    log_ratio = (logprobs - old).clamp(-LOG_LIMIT, LOG_LIMIT)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    loss = torch.maximum(plain, clipped)
    bounded = torch.zeros_like(loss, dtype=torch.bool)
    if clip.dual != "none":
        bound = -clip.dual * advantages
        bounded = (advantages < 0) & (loss.detach() > bound)
        loss = torch.where(advantages < 0, torch.minimum(loss, bound), loss)

    with torch.no_grad():
        missing = torch.isnan(recorded)
        delta = torch.where(missing, torch.zeros_like(old), old - recorded)
        weight = delta.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
        correction = torch.ones_like(weight)
        capped = torch.zeros_like(missing)
        if isinstance(algorithm.correction, TisTokenConfig):
            correction = weight.clamp(max=algorithm.correction.cap)
            capped = weight > algorithm.correction.cap
    loss = loss * correction

    kl = torch.zeros_like(logprobs)
    if reference is not None:
        kl = KL_ESTIMATORS[algorithm.kl.estimator](logprobs, reference)
    penalty = algorithm.kl.coefficient * ratio * kl
    total = loss + penalty if reference is not None else loss

    with torch.no_grad():
        statistics = {
            "tokens": torch.ones_like(weight),
            "policy_loss": loss,
            "kl_loss": penalty,
            "entropy": torch.zeros_like(weight) if entropy is None else entropy,
            "ratio": ratio,
            "clipped_high": (advantages > 0) & (ratio > 1 + clip.high),
            "clipped_low": (advantages < 0) & (ratio < 1 - clip.low),
            "clipped_dual": bounded,
            "kl_old": ratio - 1 - log_ratio,
            "kl_reference": kl,
            "mismatch_k1": -delta,
            "mismatch_k3": weight - 1 - delta.clamp(-LOG_LIMIT, LOG_LIMIT),
            "weight": weight,
            "weight_squared": weight.double().square(),
            "correction": correction,
            "correction_capped": capped,
            "missing_logprobs": missing,
        }
        sums = torch.stack([statistics[name].double().sum() for name in SUMS])
        maxima = torch.stack([ratio.max().double(), delta.abs().max().double()])
    loss = AGGREGATIONS[algorithm.aggregation](total, denominator)
    return PolicyLoss(loss=loss, per_token=total.detach(), sums=sums, maxima=maxima)


def zero_loss(logprobs: torch.Tensor) -> PolicyLoss:
    """The loss of a micro-batch in which nothing is trained: 0, with a graph to every parameter."""
    return PolicyLoss(
        loss=logprobs.sum() * 0.0,
        per_token=torch.zeros_like(logprobs[:0]).detach(),
        sums=torch.zeros(len(SUMS), dtype=torch.float64, device=logprobs.device),
        maxima=torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64, device=logprobs.device),
    )
