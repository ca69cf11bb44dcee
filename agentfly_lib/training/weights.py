"""Weights on their way out: whole tensors under their Hugging Face names, and a short proof of which ones they are.

The proof is a canary: log-probs of a fixed token sequence. An engine that serves these weights computes the same
numbers, and the hash of their bytes tells whether a replayed update gave the same weights.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import PreTrainedModel

from agentfly_lib.training.disk import free_bytes, require_space, writing
from agentfly_lib.training.lora import adapter_of, is_adapter, merged, model_name, peft_name
from agentfly_lib.training.quantize import whole

__all__ = [
    "CANARY_TOKENS",
    "canary_token_ids",
    "gather_adapter",
    "gather_weights",
    "size_of",
    "weights_digest",
    "whole_weights",
    "write_weights",
]


CANARY_TOKENS = 72
"""Long enough to fill two blocks of an engine's prefix cache, so that a stale cache would show."""


def canary_token_ids(vocab_size: int, length: int = CANARY_TOKENS, *, without: Collection[int] = ()) -> list[int]:
    """A fixed, varied token sequence that exists in every vocabulary of at least `vocab_size` entries.

    without: ids that are not in it, of which there are few.
    """
    usable = [token for token in range(min(vocab_size, 512)) if token not in without]
    return [usable[(11 + 37 * place + 5 * place * place) % len(usable)] for place in range(length)]


def weights_digest(logprobs: Sequence[float]) -> str:
    """sha256 over the canary's log-probs as float32 bytes. Equal bits need equal weights, hardware and thread count."""
    return hashlib.sha256(np.asarray(logprobs, dtype="<f4").tobytes()).hexdigest()


@torch.no_grad()
def gather_weights(model: PreTrainedModel, *, zero_stage: int) -> dict[str, torch.Tensor]:
    """Every weight on the CPU, whole, on rank 0; empty on other ranks. Collective under ZeRO 3.

    Tied weights appear once, under the name of the input embedding, as in a saved checkpoint. Adapters are merged.
    On a CPU what is not merged is the model's own memory, and changes with the next update.
    """
    first = dist.get_rank() == 0
    weights: dict[str, torch.Tensor] = {}
    for name, value in whole_weights(model, zero_stage=zero_stage, merge=first):
        if first:
            weights[name] = value.cpu().clone() if zero_stage == 3 else value.cpu().contiguous()
    return weights


@torch.no_grad()
def whole_weights(model: PreTrainedModel, *, zero_stage: int, merge: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight under its own name, one after another where it lies, whole until the next is asked for. Collective.

    merge: with adapters added, for which this rank must see them whole; else without them.
    """
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            continue
        adapter = adapter_of(model, name)
        with _whole([parameter, *(adapter[:2] if adapter else ())], zero_stage):
            yield model_name(name), merged(parameter, *adapter) if adapter and merge else whole(parameter)
    persistent = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in persistent)


@torch.no_grad()
def gather_adapter(model: PreTrainedModel, *, zero_stage: int) -> dict[str, torch.Tensor]:
    """Copies of the adapters' weights on the CPU under peft's names, on rank 0; empty on other ranks. Collective."""
    weights: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            with _whole([parameter], zero_stage):
                if dist.get_rank() == 0:
                    weights[peft_name(name)] = parameter.detach().to("cpu", copy=True).contiguous()
    return weights


def _whole(parameters: list[torch.nn.Parameter], zero_stage: int) -> AbstractContextManager[object]:
    """Within the block, every rank sees these parameters whole."""
    if zero_stage != 3:
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def write_weights(path: Path, weights: dict[str, torch.Tensor], *, policy_version: int) -> None:
    """Writes one safetensors file whose metadata names the policy version; readers see the whole file or none.

    Not flushed to the disk: meant for shared memory, or as a part of something that is flushed as a whole. Raises
    `ShardError` if they do not fit or cannot be written; nothing of them is left then.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            require_space(path, size_of(weights.values()), free_bytes(path.parent))
            save_file(weights, temporary, metadata={"policy_version": str(policy_version), "format": "pt"})
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
