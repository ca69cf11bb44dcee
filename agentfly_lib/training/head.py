"""The output head that gives log-probs of chosen tokens, and never the logits of all of them at once.

Tokens go through the head in chunks. What the backward pass needs of a chunk's logits is computed again there, unless
there is only one chunk, whose log-probs are kept. Both passes hold two [chunk, vocabulary] tensors, besides one
[vocabulary, hidden] for the gradient of the weight, which a frozen head does not have either.

    d logprob[y] / d logit[v] = ([v = y] - p[v]) / T
    d entropy    / d logit[v] = -p[v] (log p[v] + entropy) / T

It is one module call, so ZeRO 3 gathers the weight once for all chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

__all__ = ["NO_SHARE", "LogprobHead"]

NO_SHARE = -1e30
"""A logit that is no share of any softmax; finite, so that its product with the probability 0 is 0."""


class LogprobHead(torch.nn.Linear):
    """A linear head over the vocabulary; without targets it is nothing but that."""

    @classmethod
    def of(cls, head: torch.nn.Linear) -> LogprobHead:
        """The same head, holding the same parameters."""
        made = cls(head.in_features, head.out_features, bias=False, device="meta")
        made.weight, made.bias = head.weight, head.bias
        return made.train(head.training)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - with targets it answers something else
        self,
        input: torch.Tensor,
        targets: torch.Tensor | None = None,
        *,
        temperature: float = 1.0,
        chunk_tokens: int = 512,
        entropy_gradient: bool = False,
        banned: torch.Tensor | None = None,
    ) -> Any:
        """Logits of `input`; or, with `targets` [N] and `input` [N, hidden], under softmax(logits / temperature) the
        log-probs of the targets and the entropies, both [N] float32, the latter with a graph only if asked for.

        `banned` are ids that cannot be sampled: they have no part in the softmax.
        """
        if targets is None:
            return super().forward(input)
        settings = _Settings(temperature, chunk_tokens, entropy_gradient, banned)
        return _Logprobs.apply(input, self.weight, self.bias, targets, settings)


class _Settings(NamedTuple):
    temperature: float
    chunk: int
    entropy_gradient: bool
    banned: torch.Tensor | None


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]  # noqa: PLR0917 (autograd passes by position)
        ctx: Any,
        hidden: torch.Tensor,  # [N, hidden]
        weight: torch.Tensor,  # [vocabulary, hidden]
        bias: torch.Tensor | None,
        targets: torch.Tensor,  # [N]
        settings: _Settings,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        everything = None
        for part in _parts(len(targets), settings.chunk):
            logits = _logits(hidden[part], weight, bias, settings)
            everything = torch.log_softmax(logits, dim=-1)
            logprobs[part] = everything.gather(-1, targets[part].unsqueeze(-1)).squeeze(-1)
            entropy[part] = -_row_products(torch.exp(everything, out=logits), everything)
            del logits
        kept = everything if len(targets) <= settings.chunk else None
        ctx.save_for_backward(hidden, weight, bias, targets, entropy if settings.entropy_gradient else None, kept)
        ctx.settings = settings
        if not settings.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, of_logprobs: torch.Tensor, of_entropy: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, kept = ctx.saved_tensors
        settings: _Settings = ctx.settings
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if to_hidden else None
        grad_weight: torch.Tensor | None = None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if to_bias else None
        for part in _parts(len(targets), settings.chunk):
            everything = kept
            if everything is None:
                everything = torch.log_softmax(_logits(hidden[part], weight, bias, settings), dim=-1)
            factor = -of_logprobs[part].unsqueeze(-1)
            if entropy is not None:
                factor = factor - of_entropy[part].unsqueeze(-1) * (everything + entropy[part].unsqueeze(-1))
            gradient = everything.exp().mul_(factor)
            del everything, factor
            gradient.scatter_add_(-1, targets[part].unsqueeze(-1), of_logprobs[part].unsqueeze(-1))
            if settings.banned is not None:
                gradient.index_fill_(1, settings.banned, 0.0)
            if settings.temperature != 1.0:
                gradient.div_(settings.temperature)
            if grad_bias is not None:
                grad_bias += gradient.sum(0)
            gradient = gradient.to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(gradient, weight, out=grad_hidden[part])
            if to_weight:
                grad_weight = _add_product(grad_weight, gradient.T, hidden[part])
            del gradient
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *[None] * 2,
        )


def _parts(tokens: int, chunk: int) -> Iterator[slice]:
    for first in range(0, tokens, chunk):
        yield slice(first, min(first + chunk, tokens))


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: _Settings) -> torch.Tensor:
    """logits / temperature, [n, vocabulary] float32, in memory of their own."""
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    if settings.temperature != 1.0:
        logits.div_(settings.temperature)
    return logits if settings.banned is None else logits.index_fill_(1, settings.banned, NO_SHARE)


def _row_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Sum over each row of the products, without a third matrix."""
    return torch.bmm(left.unsqueeze(1), right.unsqueeze(2)).flatten()


def _add_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total + left right. Sums over chunks are kept in float32: rounding each would add up."""
    if total is None:
        return left @ right
    if total.dtype != torch.float32:
        total = total.float()
    return total.addmm_(left, right) if right.dtype == torch.float32 else total.add_(left @ right)
