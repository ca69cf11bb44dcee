"""Sequence parallelism: several ranks share each packed row, so that a sequence may be longer than one GPU can hold.

Every rank of a group embeds its own stretch of the row and carries it through the layers; around each attention,
DeepSpeed's Ulysses exchanges stretches of all heads for all stretches of some heads, and back. Log-probs are told to
the whole group, so that each of its ranks computes the same loss, but each takes the gradient of its own stretch only:
the sum over all ranks, of which the engine makes one update, counts every token once.

Ulysses: Jacobs et al. 2023, https://arxiv.org/abs/2309.14509.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from agentfly_lib.errors import ConfigError
from agentfly_lib.training.attention import document_attention

__all__ = ["SequenceGroup"]


class SequenceGroup:
    """The ranks that share a row, seen from one of them."""

    def __init__(self, model: PreTrainedModel, *, size: int) -> None:
        """Collective. Neighbouring ranks form the groups. Raises `ConfigError` if the model's heads cannot be dealt."""
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        rank, world = dist.get_rank(), dist.get_world_size()
        groups = [dist.new_group(list(range(first, first + size))) for first in range(0, world, size)]
        self.size, self.rank = size, rank % size
        self._group: Any = groups[rank // size]
        shape = model.config.get_text_config()
        width = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        try:
            self._ulysses = UlyssesSPAttentionHF(
                attn=document_attention,
                batch_size=1,
                attn_head_count=shape.num_attention_heads,
                attn_head_size=width,
                kv_head_count=getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads,
                num_hidden_layers=shape.num_hidden_layers,
                process_group=self._group,
                seq_length_is_variable=True,
            )
        except ValueError as error:
            raise ConfigError(f"learner.sequence_parallel={size} does not fit this model: {error}") from error

    def stretch(self, row: torch.Tensor) -> torch.Tensor:
        """This rank's part of [1, T]; T is a multiple of the group's size."""
        return row.chunk(self.size, dim=1)[self.rank]

    def mine(self, places: torch.Tensor, tokens: int) -> torch.Tensor:
        """Which of some places [N] in a row of that many tokens lie in this rank's stretch."""
        return places // (tokens // self.size) == self.rank

    def attend(self, module: torch.nn.Module, *states: torch.Tensor, position_ids: torch.Tensor, **named: Any) -> Any:
        """`document_attention` over the whole row; `states` are query, key and value of this rank's stretch."""
        return self._ulysses(module, *states, None, position_ids=position_ids, **named)

    def told(self, values: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
        """Collective: everyone's values [N], of which this rank has those where `mine` is set.

        The gradient goes to the own ones. `values` holds one that counts for nothing where none is this rank's.
        """
        own = values.new_zeros(len(mine))
        own = own.masked_scatter(mine, values) if bool(mine.any()) else own + 0.0 * values.sum()
        everything = own.detach().clone()
        dist.all_reduce(everything, group=self._group)
        return everything + (own - own.detach())
