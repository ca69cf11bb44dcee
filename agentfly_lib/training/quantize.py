"""Weights of four bits under adapters (QLoRA), by bitsandbytes: frozen linear layers take a quarter of their memory.

What is computed with, and what leaves the learner, are the weights that these bits stand for.

QLoRA: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, section 3.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from agentfly_lib.configs import LearnerConfig
from agentfly_lib.errors import ConfigError

__all__ = ["as_loaded", "quantization", "require_quantization", "whole"]


def require_quantization(learner: LearnerConfig) -> None:
    """Raises `ConfigError` if quantised weights are asked for and bitsandbytes is missing."""
    if learner.lora is not None and learner.lora.quantize and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError("learner.lora.quantize needs the package bitsandbytes; pip install bitsandbytes")


def quantization(dtype: torch.dtype) -> Any:
    """What `from_pretrained` wants to be told: normal floats of four bits, with quantised scales."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def as_loaded(model: torch.nn.Module) -> None:
    """Keeps bitsandbytes from packing weights for faster inference on some CPUs, from which there is no way back."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 - no module declares it


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """The weights that a parameter stands for: itself, or [out, in] of what was quantised."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    return dequantize_4bit(parameter.detach(), state)
