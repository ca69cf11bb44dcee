"""Scored rollouts that nobody collected: random tokens of given lengths, for benchmarks of an update."""

from __future__ import annotations

import numpy as np

from agentfly_lib.types import Problem, Segment, StopReason, Trajectory, TrajectoryGroup

__all__ = ["scored_groups"]

_PERIOD = 5
"""Of each five tokens the policy sampled the last two."""


def scored_groups(
    groups: int, chains: int, *, shortest: int, longest: int, vocabulary: int, seed: int = 0
) -> list[TrajectoryGroup]:
    """Groups of trajectories of `shortest` to `longest` - 1 tokens, half of them with a reward."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(groups):
        name = f"g{number}"
        members = []
        for chain in range(chains):
            length = int(rng.integers(shortest, longest))
            mask = np.arange(length) % _PERIOD >= 3
            logprobs = rng.normal(-2, 0.3, length).astype(np.float32)
            segment = Segment(
                token_ids=rng.integers(0, vocabulary, length).astype(np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, logprobs, np.float32(np.nan)),
                turns=(),
            )
            members.append(
                Trajectory(
                    id=f"{name}/{chain}",
                    problem_id=name,
                    group_id=name,
                    chain=chain,
                    segments=(segment,),
                    reward=float(chain % 2),
                    stop=StopReason.FINISHED,
                )
            )
        made.append(TrajectoryGroup(id=name, problem=Problem(id=name, messages=()), trajectories=tuple(members)))
    return made
