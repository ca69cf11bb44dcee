"""Which part of a GPU a learner rank claims, so that Ray never puts two ranks on one: NCCL refuses that.

With a GPU for every rank and for the engine, each rank gets one of its own. With fewer, a rank may share its GPU with
an engine of one GPU, which claims `inference.gpu_memory_fraction` of it; the rank claims the rest.
"""

from __future__ import annotations

import math

from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import ConfigError

__all__ = ["rank_gpus"]


def rank_gpus(config: RunConfig, gpus: int) -> float:
    """GPUs that each rank claims where the cluster has `gpus` in all; 0 if the learner runs on CPUs.

    Raises `ConfigError` if they are too few, or if two ranks could come to lie on one.
    """
    learner, inference = config.learner, config.inference
    if learner.device == "cpu" or (learner.device == "auto" and not gpus):
        return 0.0
    engine = 0 if inference.device == "cpu" else inference.tensor_parallel
    if learner.ranks + engine <= gpus:
        return 1.0
    if engine != 1 or learner.ranks > gpus:
        raise ConfigError(
            f"learner.ranks={learner.ranks} and an engine of {engine} GPU(s) (inference.tensor_parallel) need "
            f"{learner.ranks + engine} GPUs, the cluster has {gpus}; lower one of them. Only an engine of one GPU can "
            "share it with a rank"
        )
    share = math.floor((1 - inference.gpu_memory_fraction) * 10_000) / 10_000  # Ray counts in ten-thousandths
    if learner.ranks > 1 and share <= 0.5:
        raise ConfigError(
            f"inference.gpu_memory_fraction={inference.gpu_memory_fraction:g} leaves {share:g} of a GPU to a rank, so "
            f"two of the {learner.ranks} ranks could share one, which NCCL refuses; set it below 0.5, or give the "
            f"engine a GPU of its own ({learner.ranks + 1} in all)"
        )
    return share
