"""Draws tokens as a request asks for: temperature, then min-p, top-k and top-p; seeded, and each row by itself.

What a token's log-prob is taken from is the distribution that it is drawn from (`processed_logprobs`). A draw is the
inverse of the cumulative distribution at one uniform number per token, in double precision, so a request's tokens
depend on its own seed and logits alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentfly_lib.configs.inference import SamplingConfig
from agentfly_lib.inference.generate import GenerationRequest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["draw", "processed_logprobs"]


def processed_logprobs(logits: Tensor, requests: Sequence[GenerationRequest]) -> Tensor:
    """Log-probs [B, V] of the distribution that each request samples from `logits` [B, V]; -inf for what it cuts.

    A greedy request's are those of the unscaled distribution.
    """
    import torch

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
