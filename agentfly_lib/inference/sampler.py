"""Draws tokens as a request asks for, in the order that `SamplingConfig` says; seeded, and each row by itself.

What a token's log-prob is taken from is the distribution that it is drawn from (`processed_logprobs`). A draw is the
inverse of the cumulative distribution at one uniform number per token, in double precision, so a request's tokens
depend on its own seed and logits alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agentfly_lib.configs.inference import SamplingConfig
from agentfly_lib.inference.generate import GenerationRequest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["draw", "processed_logprobs"]


def processed_logprobs(
    logits: Tensor, requests: Sequence[GenerationRequest], sampled: Sequence[Sequence[int]], banned: Sequence[int] = ()
) -> Tensor:
    """Log-probs [B, V] of the distribution that each request samples from `logits` [B, V]; -inf for what it cuts.

    sampled: the tokens that each request has sampled so far. banned: ids that no request can sample.
    A greedy request's are those of the distribution at temperature 1, of which nothing is cut.
    """
    import torch

    if banned:
        logits = logits.index_fill(-1, torch.tensor(banned, device=logits.device), float("-inf"))
    if any(request.sampling.reshapes for request in requests):
        logits = torch.stack([_reshaped(*row) for row in zip(logits, requests, sampled, strict=True)])
    temperatures = [1.0 if request.greedy else request.sampling.temperature for request in requests]
    scale = torch.tensor(temperatures, dtype=torch.float32, device=logits.device)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    for row, request in enumerate(requests):
        if request.sampling.truncates and not request.greedy:
            logprobs[row] = _truncated(logprobs[row], request.sampling)
    return logprobs


def draw(logprobs: Tensor, requests: Sequence[GenerationRequest], uniforms: Sequence[float]) -> Tensor:
    """One token of each row [B]; `uniforms` in [0, 1), one per row, unused where the request is greedy."""
    import torch

    cumulative = logprobs.double().exp().cumsum(dim=-1)
    points = torch.tensor(uniforms, dtype=torch.float64, device=logprobs.device)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, points, right=True)[:, 0]  # the first token whose share reaches beyond it
    drawn = drawn.clamp(max=logprobs.shape[-1] - 1)
    greedy = torch.tensor([request.greedy for request in requests], device=logprobs.device)
    return torch.where(greedy, logprobs.argmax(dim=-1), drawn)


def _reshaped(logits: Tensor, request: GenerationRequest, sampled: Sequence[int]) -> Tensor:
    """One row [V] with biases and penalties.

    Repetition: Keskar et al., CTRL (arXiv 1909.05858), section 4.1, over prompt and reply; frequency and presence: as
    OpenAI defines them, over the reply.
    """
    import torch

    sampling = request.sampling
    if not sampling.reshapes:
        return logits
    logits = logits.float().clone()

    def index(ids: Iterable[int]) -> Tensor:
        return torch.tensor(sorted(ids), dtype=torch.long, device=logits.device)

    if sampling.logit_bias:
        biased = sorted(sampling.logit_bias)
        logits[index(biased)] += torch.tensor([sampling.logit_bias[token] for token in biased], device=logits.device)
    if len(sampled) < sampling.min_tokens:
        logits[index(set(request.stop_token_ids))] = float("-inf")
    if sampling.repetition_penalty != 1:
        seen = index({*request.token_ids, *sampled})
        logits[seen] = torch.where(
            logits[seen] > 0, logits[seen] / sampling.repetition_penalty, logits[seen] * sampling.repetition_penalty
        )
    if sampled and (sampling.frequency_penalty or sampling.presence_penalty):
        counts = torch.bincount(index(sampled), minlength=len(logits))
        logits -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    return logits


def _truncated(logprobs: Tensor, sampling: SamplingConfig) -> Tensor:
    """One row [V] without the tokens that min-p, then top-k, then top-p cut, normalised again."""
    import torch

    if sampling.min_p > 0:
        logprobs = _keep(logprobs, logprobs.exp() >= sampling.min_p * logprobs.max().exp())
    if 0 < sampling.top_k < len(logprobs):
        logprobs = _keep(logprobs, logprobs >= logprobs.topk(sampling.top_k).values[-1])
    if sampling.top_p < 1:
        ordered, index = torch.log_softmax(logprobs, -1).sort(descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        kept = torch.zeros_like(logprobs, dtype=torch.bool)
        kept[index] = before < sampling.top_p  # the most probable token always is
        logprobs = _keep(logprobs, kept)
    return torch.log_softmax(logprobs, -1)


def _keep(logprobs: Tensor, kept: Tensor) -> Tensor:
    return logprobs.masked_fill(~kept, float("-inf"))
