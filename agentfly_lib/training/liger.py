"""Liger kernels: norms, rotary positions and gated MLPs as fused Triton kernels, for a model that is already loaded.

Only on GPUs. The output head and the loss are ours (`head.py`) and stay so.
"""

from __future__ import annotations

import importlib.util
import logging

import torch
from transformers import PreTrainedModel

from agentfly_lib.configs import LearnerConfig
from agentfly_lib.errors import ConfigError

__all__ = ["use_liger"]

logger = logging.getLogger(__name__)


def use_liger(model: PreTrainedModel, learner: LearnerConfig, device: torch.device) -> bool:
    """Swaps the model's layers for Liger's, in place, if the config wants them here; whether it did.

    "auto" takes them on a GPU where the package is. Raises `ConfigError` if they are demanded and cannot be had.
    """
    present = importlib.util.find_spec("liger_kernel") is not None
    if learner.liger is True and not (present and device.type == "cuda"):
        missing = "a GPU, which this rank lacks" if present else "the package liger-kernel; pip install liger-kernel"
        raise ConfigError(f"learner.liger=true needs {missing}. Or set it to false")
    if learner.liger is False or not present or device.type != "cuda":
        return False
    from liger_kernel.transformers import _apply_liger_kernel_to_instance  # type: ignore[import-not-found]
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN  # type: ignore[import-not-found]

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        if learner.liger is True:
            raise ConfigError(
                f"learner.liger=true: Liger has no kernels for {model.config.model_type}; set it to false"
            )
        return False
    _apply_liger_kernel_to_instance(model=model, cross_entropy=False, fused_linear_cross_entropy=False)
    logger.info("Liger kernels for %s", model.config.model_type)
    return True
