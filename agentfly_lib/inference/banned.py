"""A logits processor for vLLM: ids that claim a picture are never sampled, and are no part of any log-prob.

It acts on every request of an engine alike, before temperature and normalisation, so that recorded log-probs are those
of the distribution without these ids, as the learner computes them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from agentfly_lib.chat.image_reader import vision_token_ids

__all__ = ["BannedTokens"]


class BannedTokens(LogitsProcessor):
    """Takes the model's vision tokens out of the distribution."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del is_pin_memory
        banned = vision_token_ids(Path(vllm_config.model_config.model))
        self._banned = torch.tensor(banned, dtype=torch.long, device=device)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [B, V], changed in place."""
        return logits.index_fill_(-1, self._banned, float("-inf"))

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        del batch_update  # nothing is kept of requests
