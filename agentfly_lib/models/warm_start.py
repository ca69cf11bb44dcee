"""Supervised learning on demonstrations: the small model's first lessons.

Only what the policy would have sampled is learnt: its own turns, with the end-of-turn token. The prompt and the
calculator's replies are context. The output layer, the widest of the model, runs on those positions alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentfly_lib.types import IntArray, MaskArray, Message

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer, Qwen2VLForConditionalGeneration

__all__ = ["Encoded", "WarmStage", "encode", "train"]

_LENGTH_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """One episode as the model reads it."""

    token_ids: IntArray  # [T]
    loss_mask: MaskArray  # [T]  True on the assistant's tokens, end-of-turn included
    pictures: tuple[bytes, ...] = ()
    """Encoded, in the order of their placeholders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStage:
    """One run of AdamW: linear warm-up, cosine decay to a tenth, gradient norm clipped at 1."""

    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int = 20
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01

    def learning_rate_at(self, step: int) -> float:
        """Rate of the update with index `step`, counted from 0."""
        decay = 0.1 + 0.9 * (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.learning_rate * min(1.0, (step + 1) / self.warmup_steps) * decay


def encode(
    conversations: Sequence[Sequence[Message]], tokenizer: Qwen2Tokenizer, tools: Sequence[Mapping[str, Any]]
) -> list[Encoded]:
    """Token ids and loss masks of whole conversations, by the chat template's own generation markers.

    What the template puts after the last end-of-turn token is cut off: no episode goes on after its end.
    """
    encoded = []
    for messages in conversations:
        rendered: Any = tokenizer.apply_chat_template(
            list(messages), tools=[dict(tool) for tool in tools], return_dict=True, return_assistant_tokens_mask=True
        )
        mask = np.asarray(rendered["assistant_masks"], dtype=np.bool_)
        length = int(mask.nonzero()[0][-1]) + 1
        ids = np.asarray(rendered["input_ids"], dtype=np.int32)
        encoded.append(Encoded(token_ids=ids[:length], loss_mask=mask[:length]))
    return encoded


def train(
    model: Qwen2ForCausalLM | Qwen2VLForConditionalGeneration,
    episodes: Sequence[Encoded],
    stage: WarmStage,
    *,
    pad_id: int,
    on_step: Callable[[int, float], None] | None = None,
    see: Callable[[torch.Tensor, Sequence[Encoded]], Mapping[str, torch.Tensor]] | None = None,
) -> float:
    """Train `model` in place on `episodes` in their order, `stage.batch_size` a step; returns the last step's loss.

    `on_step` gets the number of steps done and the loss, in nats per token. `see` gives what the model takes besides
    the token ids [B, T] of these episodes.
    """
    import torch

    if len(episodes) != stage.steps * stage.batch_size:
        raise ValueError(
            f"{stage.steps} steps of {stage.batch_size} need exactly so many episodes, got {len(episodes)}"
        )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=stage.learning_rate, betas=stage.betas, weight_decay=stage.weight_decay, fused=True
    )
    model.train()
    last = math.nan
    for step, (batch, token_ids, loss_mask) in enumerate(_batches(episodes, stage.batch_size, pad_id)):
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate_at(step)
        loss = _loss(model, token_ids, loss_mask, {} if see is None else see(token_ids, batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = float(loss.detach())
        if on_step is not None:
            on_step(step + 1, last)
    return last


def _loss(
    model: Qwen2ForCausalLM | Qwen2VLForConditionalGeneration,
    token_ids: torch.Tensor,
    loss_mask: torch.Tensor,
    seen: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Mean cross-entropy over the masked tokens of `token_ids` [B, T].

    Rows are padded on the right, which causal attention never looks at from a real token, so no attention mask is
    needed (and without one the faster causal kernel is used).
    """
    from torch.nn import functional

    hidden = model.model(input_ids=token_ids, use_cache=False, **seen).last_hidden_state
    predicts = loss_mask[:, 1:]
    logits = model.lm_head(hidden[:, :-1][predicts])
    return functional.cross_entropy(logits, token_ids[:, 1:][predicts])


def _batches(
    episodes: Sequence[Encoded], batch_size: int, pad_id: int
) -> Iterator[tuple[Sequence[Encoded], torch.Tensor, torch.Tensor]]:
    import torch

    for start in range(0, len(episodes), batch_size):
        batch = episodes[start : start + batch_size]
        longest = max(len(episode.token_ids) for episode in batch)
        width = longest + -longest % _LENGTH_MULTIPLE
        token_ids = torch.full((len(batch), width), pad_id, dtype=torch.long)
        loss_mask = torch.zeros((len(batch), width), dtype=torch.bool)
        for row, episode in enumerate(batch):
            token_ids[row, : len(episode.token_ids)] = torch.from_numpy(episode.token_ids)
            loss_mask[row, : len(episode.loss_mask)] = torch.from_numpy(episode.loss_mask)
        yield batch, token_ids, loss_mask
