"""Attention within documents: a packed row must never look across the border between two of its samples.

Registered with transformers under `ATTENTION`, so that any decoder that uses its attention interface works unchanged;
the row's `Documents` travel through the model's forward as a keyword argument.

On a CPU, and for float32, documents of similar length are gathered into padded blocks [documents, longest] and go
through one causal scaled-dot-product call per block. Padding lies behind each document, where causality hides it, so
the result is exact. On a GPU in half precision the flash kernel for variable lengths reads the row as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from agentfly_lib.errors import ModelError

if TYPE_CHECKING:
    from agentfly_lib.training.sequence import SequenceGroup

__all__ = ["ATTENTION", "Block", "Documents", "document_attention", "register_attention"]

ATTENTION = "agentfly_documents"
"""Name for `attn_implementation`."""

BLOCK_FILL = 0.85
"""A document joins a block only if it is at least this long relative to the block's longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Documents of similar length, as one rectangle."""

    slots: torch.Tensor  # [documents * longest]  index of each slot's token in the row; any token for padding
    documents: int
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Where the documents of one packed row lie, prepared once for all layers."""

    boundaries: torch.Tensor  # [documents + 1] int32, from 0 to T
    longest: int
    blocks: tuple[Block, ...]
    homes: torch.Tensor  # [T]  slot of each token in the concatenation of all blocks
    sequence: SequenceGroup | None = None
    """Where several ranks share the row."""

    @property
    def slots(self) -> int:
        """Of all blocks, padding included."""
        return sum(block.documents * block.longest for block in self.blocks)

    @classmethod
    def of(cls, boundaries: npt.NDArray[np.int32], num_tokens: int, device: torch.device) -> Documents:
        """From cumulative lengths (starting with 0). Tokens behind the last boundary form a document of their own."""
        edges = boundaries.astype(np.int64)
        if edges[-1] < num_tokens:
            edges = np.append(edges, num_tokens)
        lengths = np.diff(edges)
        order = np.argsort(-lengths, kind="stable")
        homes = np.empty(num_tokens, np.int64)
        blocks: list[Block] = []
        first = offset = 0
        while first < len(order):
            longest = int(lengths[order[first]])
            last = first
            while last < len(order) and lengths[order[last]] >= BLOCK_FILL * longest:
                last += 1
            members = order[first:last]
            columns = np.arange(longest)
            inside = columns[None, :] < lengths[members][:, None]
            slots = np.where(inside, edges[members][:, None] + columns[None, :], edges[members][:, None])
            homes[slots[inside]] = offset + np.flatnonzero(inside)
            blocks.append(
                Block(slots=torch.from_numpy(slots.reshape(-1)).to(device), documents=len(members), longest=longest)
            )
            offset += slots.size
            first = last
        return cls(
            boundaries=torch.from_numpy(edges.astype(np.int32)).to(device),
            longest=int(lengths.max()),
            blocks=tuple(blocks),
            homes=torch.from_numpy(homes).to(device),
        )


def register_attention() -> str:
    """Makes `ATTENTION` known to transformers (again, if need be) and returns its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, document_attention)
    return ATTENTION


def document_attention(  # noqa: PLR0917 (transformers passes these by position)
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    documents: Documents | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each document; [1, heads, T, D] in, [1, T, heads, D] out (transformers' interface).

    Dropout is never applied: the policy whose gradient is taken must be the policy that is measured.
    """
    if documents is None:
        raise ModelError(
            f"{type(module).__name__} did not pass `documents` on to its attention, so its rows cannot be "
            "packed; this architecture cannot be trained yet"
        )
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if unsupported or query.shape[0] != 1:
        raise ModelError(
            f"{type(module).__name__} needs {', '.join(unsupported) or 'several rows'}, "
            f"which packed attention does not compute; this architecture cannot be trained yet"
        )
    if documents.sequence is not None:
        whole = replace(documents, sequence=None)
        positions = kwargs.pop("position_ids", None)
        if positions is None:
            positions = torch.zeros(1, query.shape[2], dtype=torch.long, device=query.device)
        return documents.sequence.attend(
            module,
            query,
            key,
            value,
            position_ids=positions,
            scaling=scaling,
            sliding_window=sliding_window,
            documents=whole,
        )
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]  # [T, heads, D]
    compute = _flash if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) else _padded
    output = compute(rows[0], rows[1], rows[2], documents, scaling=scaling, window=sliding_window)
    return output.unsqueeze(0), None


def _padded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents,
    *,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    repeat = query.shape[1] // key.shape[1]
    outputs: list[torch.Tensor] = []
    for block in documents.blocks:

        def rectangle(rows: torch.Tensor, block: Block = block) -> torch.Tensor:  # [documents, heads, longest, D]
            shape = (block.documents, block.longest, *rows.shape[1:])
            return rows.index_select(0, block.slots).view(shape).transpose(1, 2)

        keys, values = rectangle(key), rectangle(value)
        if repeat > 1 and query.is_cuda:  # the kernels that take grouped keys there are not the memory-efficient ones
            keys, values = keys.repeat_interleave(repeat, dim=1), values.repeat_interleave(repeat, dim=1)
        mask = None
        if window is not None and window < block.longest:
            distance = torch.arange(block.longest, device=query.device)
            distance = distance[:, None] - distance[None, :]
            mask = (distance >= 0) & (distance < window)
        attended = F.scaled_dot_product_attention(
            rectangle(query),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=keys.shape[1] != query.shape[1],
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    slots = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return slots.index_select(0, documents.homes)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents,
    *,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    left = -1 if window is None else window - 1
    output = varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        documents.boundaries,
        documents.boundaries,
        documents.longest,
        documents.longest,
        scale=scaling,
        window_size=(left, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, torch.Tensor)
    return output
