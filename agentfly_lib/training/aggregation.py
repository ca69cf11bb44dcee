"""How the losses of tokens are summed up: the share that every token has in the loss of its optimizer batch.

A share depends on whole trajectories and on the whole batch, over all ranks and micro-batches, so the sum over any
split of the batch is the same. Only trained tokens are counted, and only trajectories that have one.

    token_mean             1 / sum_i T_i
    seq_mean_token_mean    1 / (B T_i)
    dr_grpo                1 / (B L_max)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentfly_lib.configs import DrGrpoAggregationConfig, RunConfig
from agentfly_lib.types import TrainingSample

__all__ = ["AGGREGATIONS", "token_shares", "trajectory_lengths"]


def trajectory_lengths(samples: Sequence[TrainingSample]) -> dict[str, int]:
    """Trajectory id -> trained tokens in all of its segments (T_i); those without any are left out."""
    lengths: dict[str, int] = {}
    for sample in samples:
        if sample.num_loss_tokens:
            lengths[sample.trajectory_id] = lengths.get(sample.trajectory_id, 0) + sample.num_loss_tokens
    return lengths


def _token_mean(lengths: Mapping[str, int], longest: int) -> dict[str, float]:
    del longest
    share = 1.0 / max(sum(lengths.values()), 1)
    return dict.fromkeys(lengths, share)


def _seq_mean_token_mean(lengths: Mapping[str, int], longest: int) -> dict[str, float]:
    del longest
    return {name: 1.0 / (len(lengths) * max(length, 1)) for name, length in lengths.items()}


def _dr_grpo(lengths: Mapping[str, int], longest: int) -> dict[str, float]:
    share = 1.0 / (max(len(lengths), 1) * longest)
    return dict.fromkeys(lengths, share)


AGGREGATIONS: Mapping[str, Callable[[Mapping[str, int], int], dict[str, float]]] = MappingProxyType(
    {"token_mean": _token_mean, "seq_mean_token_mean": _seq_mean_token_mean, "dr_grpo": _dr_grpo}
)
"""From T_i of every trajectory of an optimizer batch, and L_max, to the share of each of its tokens; by
`algorithm.aggregation.type`."""


def token_shares(lengths: Mapping[str, int], config: RunConfig) -> dict[str, float]:
    """Trajectory id -> share of each of its tokens, as the config says."""
    aggregation: Any = config.algorithm.aggregation
    longest = config.rollout.max_sampled_tokens
    if isinstance(aggregation, DrGrpoAggregationConfig) and aggregation.max_tokens is not None:
        longest = aggregation.max_tokens
    return AGGREGATIONS[aggregation.type](lengths, longest)
