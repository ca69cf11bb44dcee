"""Where each learner rank goes: into its bundle of the run's placement group, never two ranks on one GPU.

NCCL refuses two ranks on one GPU. Who shares with whom is decided for engines and ranks together, in
`agentfly_lib.inference.placement`.
"""

from __future__ import annotations

from typing import Any

from agentfly_lib.cluster import bundle_options, gpu_count
from agentfly_lib.configs import RunConfig
from agentfly_lib.inference.placement import place

__all__ = ["rank_options"]


def rank_options(config: RunConfig, rank: int, *, namespace: str) -> dict[str, Any]:
    """Options of a rank's Ray actor: its GPU and its place in the group. Ray must be running.

    Raises `ConfigError` if there are too few GPUs.
    """
    placement = place(config, gpu_count())
    if not placement.ranks:
        return {"num_gpus": 0}
    options = bundle_options(placement.bundles, placement.ranks[rank], namespace=namespace)
    return {"num_gpus": placement.rank_gpus, **options}
