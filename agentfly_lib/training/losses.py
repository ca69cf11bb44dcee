"""The objective, over trained tokens only: a policy loss, its penalties and bonuses, and what is worth knowing.

What is chosen by the config is looked up under its `type` (`POLICY_LOSSES`, `CORRECTIONS`, `KL_ESTIMATORS`); a further
one is a function and an entry.

Notation, per token: `l` log-prob under the policy being trained, `o` under the trainer's policy at the start of the
step, `mu` recorded by the engine at sampling time, `f` under the frozen reference, `A` advantage, `w` the token's share
of the batch (`aggregation`); r = exp(l - o), delta = o - mu.

    ppo     max(-A r, -A clip(r, 1 - low, 1 + high)), at most -dual A where A < 0    1707.06347, 1912.09729
    cispo   -sg(min(r, cap)) A l                                                     2506.13585
    gspo    ppo's with exp(mean over the trajectory of l - o) in place of r          2507.18071
    nll     -A l
    loss    sum w (c L + beta KL - eta H) + V

The correction c is a function of delta, detached; KL is k2 or r k3 with x = f - l; H is the entropy; V is the clipped
squared error of a value head where there is one.

Tokens that were not sampled never come here: callers select the trained ones first. So nothing about a masked token
can reach the loss, and its gradient is exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from agentfly_lib.configs import (
    AlgorithmConfig,
    CispoLossConfig,
    GaeAdvantageConfig,
    GspoLossConfig,
    MaskGeometricConfig,
    MaskSequenceConfig,
    NllLossConfig,
    NoCorrectionConfig,
    PpoLossConfig,
    TisSequenceConfig,
    TisTokenConfig,
)

__all__ = [
    "CORRECTIONS",
    "KL_ESTIMATORS",
    "MAXIMA",
    "POLICY_LOSSES",
    "SUMS",
    "PolicyLoss",
    "Trajectories",
    "policy_loss",
    "zero_loss",
]

LOG_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before `exp`: far outside of any clip range, and never an overflow."""

SUMS = (
    "tokens",
    "policy_loss",
    "kl_loss",
    "value_loss",
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

    loss: torch.Tensor  # []  carries the graph; its share of the whole optimizer batch's loss
    per_token: torch.Tensor  # [N] detached
    sums: torch.Tensor  # [len(SUMS)] float64
    maxima: torch.Tensor  # [len(MAXIMA)] float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectories:
    """Which tokens of a micro-batch make up which trajectory, for what is defined on whole trajectories.

    Where other micro-batches hold a part of one (its other segments), the sums over all of it are given.
    """

    index: torch.Tensor  # [N] int64  number of the token's trajectory, from 0 to M - 1
    lengths: torch.Tensor  # [M] float  trained tokens of the whole trajectory
    log_ratio_sums: torch.Tensor | None = None  # [M]  sum of l - o over the whole trajectory, detached
    delta_sums: torch.Tensor | None = None  # [M]  sum of o - mu over the whole trajectory

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over each trajectory's tokens that are here; [N] -> [M], in float64."""
        zeros = torch.zeros(len(self.lengths), dtype=torch.float64, device=values.device)
        return zeros.index_add(0, self.index, values.double())

    @classmethod
    def single(cls, tokens: int, device: torch.device | None = None) -> Trajectories:
        """All tokens are of one trajectory, which is here as a whole."""
        return cls(
            index=torch.zeros(tokens, dtype=torch.long, device=device),
            lengths=torch.full((1,), float(tokens), device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surrogate:
    """Loss per token before correction, and where its clipping held [N]."""

    loss: torch.Tensor
    ratio: torch.Tensor
    high: torch.Tensor
    low: torch.Tensor
    dual: torch.Tensor


def _clip(advantages: torch.Tensor, ratio: torch.Tensor, low: float, high: float) -> _Surrogate:
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    with torch.no_grad():
        above, below = (advantages > 0) & (ratio > 1 + high), (advantages < 0) & (ratio < 1 - low)
    return _Surrogate(loss=loss, ratio=ratio, high=above, low=below, dual=torch.zeros_like(above))


def _ppo(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, _: Trajectories, config: PpoLossConfig
) -> _Surrogate:
    plain = _clip(advantages, _ratio(logprobs, old), config.clip_low, config.clip_high)
    if config.dual_clip == "none":
        return plain
    bound = -config.dual_clip * advantages
    dual = (advantages < 0) & (plain.loss.detach() > bound)
    loss = torch.where(advantages < 0, torch.minimum(plain.loss, bound), plain.loss)
    return _Surrogate(loss=loss, ratio=plain.ratio, high=plain.high, low=plain.low, dual=dual)


def _cispo(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, _: Trajectories, config: CispoLossConfig
) -> _Surrogate:
    ratio = _ratio(logprobs, old).detach()
    never = torch.zeros_like(ratio, dtype=torch.bool)
    loss = -ratio.clamp(max=config.cap) * advantages * logprobs
    return _Surrogate(loss=loss, ratio=ratio, high=ratio > config.cap, low=never, dual=never)


def _gspo(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, whole: Trajectories, config: GspoLossConfig
) -> _Surrogate:
    """Token by token, so that a trajectory may be spread over micro-batches: sg(s_i) exp(l - sg(l)) has the value of
    s_i, and the mean of its gradients over the T_i tokens is the gradient of s_i (section 4.3 of the paper)."""
    sums = whole.log_ratio_sums
    if sums is None:
        sums = whole.sums((logprobs - old).detach())
    mean = (sums / whole.lengths.clamp(min=1)).clamp(-LOG_LIMIT, LOG_LIMIT)
    ratio = mean.exp().to(logprobs.dtype)[whole.index] * (logprobs - logprobs.detach()).exp()
    return _clip(advantages, ratio, config.clip_low, config.clip_high)


def _nll(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, _: Trajectories, config: NllLossConfig
) -> _Surrogate:
    del config
    ratio = _ratio(logprobs, old).detach()
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return _Surrogate(loss=-advantages * logprobs, ratio=ratio, high=never, low=never, dual=never)


POLICY_LOSSES: Mapping[str, Callable[..., _Surrogate]] = MappingProxyType(
    {"ppo": _ppo, "cispo": _cispo, "gspo": _gspo, "nll": _nll}
)
"""(l, o, A, trajectories, config) -> loss per token [N], by `algorithm.loss.type`."""


def k1(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """-x with x = f - l, per token: unbiased, of large variance (http://joschu.net/blog/kl-approx.html)."""
    return -_difference(logprobs, reference)


def k2(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """x^2 / 2, per token: biased, and its gradient is that of the divergence."""
    return _difference(logprobs, reference).square() / 2


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """exp(x) - x - 1, per token: unbiased and never negative."""
    difference = _difference(logprobs, reference)
    return difference.exp() - difference - 1


KL_ESTIMATORS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3}
)
"""Divergence per token [N] from log-probs and those of the reference, by `algorithm.kl.estimator`."""


def _no_correction(
    delta: torch.Tensor, _: Trajectories, config: NoCorrectionConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    del config
    return torch.ones_like(delta), torch.zeros_like(delta, dtype=torch.bool)


def _tis_token(delta: torch.Tensor, _: Trajectories, config: TisTokenConfig) -> tuple[torch.Tensor, torch.Tensor]:
    weight = _exp(delta)
    return weight.clamp(max=config.cap), weight > config.cap


def _tis_sequence(
    delta: torch.Tensor, whole: Trajectories, config: TisSequenceConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = _exp(_whole_delta(delta, whole)).to(delta.dtype)[whole.index]
    return weight.clamp(max=config.cap), weight > config.cap


def _mask_sequence(
    delta: torch.Tensor, whole: Trajectories, config: MaskSequenceConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = _exp(_whole_delta(delta, whole)).to(delta.dtype)[whole.index]
    over = weight > config.limit
    return weight.masked_fill(over, 0.0), over


def _mask_geometric(
    delta: torch.Tensor, whole: Trajectories, config: MaskGeometricConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    mean = _exp(_whole_delta(delta, whole) / whole.lengths.clamp(min=1))[whole.index]
    outside = (mean < config.low) | (mean > config.high)
    return (~outside).to(delta.dtype), outside


CORRECTIONS: Mapping[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = MappingProxyType(
    {
        "none": _no_correction,
        "tis_token": _tis_token,
        "tis_sequence": _tis_sequence,
        "mask_sequence": _mask_sequence,
        "mask_geometric": _mask_geometric,
    }
)
"""(delta, trajectories, config) -> weights [N], and where the limit held [N]; by `algorithm.correction.type`."""


def policy_loss(
    logprobs: torch.Tensor,
    *,
    old: torch.Tensor,
    recorded: torch.Tensor,
    advantages: torch.Tensor,
    shares: torch.Tensor,
    algorithm: AlgorithmConfig,
    trajectories: Trajectories | None = None,
    reference: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    values: torch.Tensor | None = None,
    old_values: torch.Tensor | None = None,
    returns: torch.Tensor | None = None,
) -> PolicyLoss:
    """Loss of the trained tokens of one micro-batch.

    Every tensor is [N] float32; only `logprobs`, `values` and `entropy` have a gradient. `recorded` may hold NaN where
    the engine gave no log-prob: that token gets delta = 0 and is counted. `shares` is each token's share in the loss of
    the whole optimizer batch, over all ranks and micro-batches. Without `trajectories` all tokens are of one.
    """
    whole = trajectories or Trajectories.single(len(logprobs), logprobs.device)
    surrogate = POLICY_LOSSES[algorithm.loss.type](logprobs, old, advantages, whole, algorithm.loss)
    with torch.no_grad():
        missing = torch.isnan(recorded)
        delta = torch.where(missing, torch.zeros_like(old), old - recorded)
        correction, capped = CORRECTIONS[algorithm.correction.type](delta, whole, algorithm.correction)
        weight = _exp(delta)
    loss = surrogate.loss * correction
    total = loss

    kl = penalty = value_loss = torch.zeros_like(logprobs)
    if reference is not None:
        kl = KL_ESTIMATORS[algorithm.kl.estimator](logprobs, reference)
        if algorithm.kl.place == "loss":
            penalty = algorithm.kl.coefficient * (_ratio(logprobs, old) * kl if algorithm.kl.estimator == "k3" else kl)
            total = total + penalty
    if algorithm.entropy_coefficient and entropy is not None:
        total = total - algorithm.entropy_coefficient * entropy
    if isinstance(algorithm.advantage, GaeAdvantageConfig):
        value_loss = _value_loss(algorithm.advantage, values, old_values, returns)
        total = total + value_loss

    with torch.no_grad():
        log_ratio = _log_ratio(logprobs, old)
        statistics: dict[str, Any] = {
            "tokens": torch.ones_like(weight),
            "policy_loss": loss,
            "kl_loss": penalty,
            "value_loss": value_loss,
            "entropy": torch.zeros_like(weight) if entropy is None else entropy,
            "ratio": surrogate.ratio,
            "clipped_high": surrogate.high,
            "clipped_low": surrogate.low,
            "clipped_dual": surrogate.dual,
            "kl_old": log_ratio.exp() - 1 - log_ratio,
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
        maxima = torch.stack([surrogate.ratio.max().double(), delta.abs().max().double()])
    return PolicyLoss(loss=(shares * total).sum(), per_token=total.detach(), sums=sums, maxima=maxima)


def zero_loss(*outputs: torch.Tensor) -> PolicyLoss:
    """The loss of a micro-batch in which nothing is trained: 0, with a graph to every parameter behind the outputs."""
    first = outputs[0]
    return PolicyLoss(
        loss=torch.stack([output.sum() * 0.0 for output in outputs]).sum(),
        per_token=torch.zeros_like(first[:0]).detach(),
        sums=torch.zeros(len(SUMS), dtype=torch.float64, device=first.device),
        maxima=torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64, device=first.device),
    )


def _value_loss(
    config: GaeAdvantageConfig,
    values: torch.Tensor | None,
    old_values: torch.Tensor | None,
    returns: torch.Tensor | None,
) -> torch.Tensor:
    """coefficient / 2 max((V - G)^2, (clip(V, V_old +- clip) - G)^2), per token (arXiv 2005.12729)."""
    if values is None or old_values is None or returns is None:
        raise ValueError("a value head's loss needs its values, those at the start of the step, and returns")
    near = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
    worst = torch.maximum((values - returns).square(), (near - returns).square())
    return config.value_coefficient / 2 * worst


def _log_ratio(logprobs: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return (logprobs - old).clamp(-LOG_LIMIT, LOG_LIMIT)


def _ratio(logprobs: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return _log_ratio(logprobs, old).exp()


def _exp(value: torch.Tensor) -> torch.Tensor:
    return value.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def _difference(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (reference - logprobs).clamp(-LOG_LIMIT, LOG_LIMIT)


def _whole_delta(delta: torch.Tensor, whole: Trajectories) -> torch.Tensor:
    return whole.sums(delta) if whole.delta_sums is None else whole.delta_sums
