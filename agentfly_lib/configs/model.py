"""Which policy is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentfly_lib.configs.base import Config

__all__ = ["ModelConfig", "PretrainedModelConfig", "TinyModelConfig", "TinyVisionModelConfig"]


class PretrainedModelConfig(Config):
    """Any Hugging Face causal language model: a local directory, or a hub id, which is downloaded."""

    type: Literal["pretrained"] = "pretrained"
    name_or_path: str
    """A directory with `config.json`, safetensors weights, a tokenizer and a chat template; or a hub id."""
    revision: str | None = None
    """Commit to download, for a hub id."""


class TinyModelConfig(Config):
    """The half-million-parameter model that `agentfly model tiny` makes on this machine, in about a minute."""

    type: Literal["tiny"] = "tiny"
    seed: int = 0
    """Seed of its initial weights and of the supervised warm start."""
    warm_steps: Annotated[int, Field(ge=1)] = 400
    """Supervised steps on correct demonstrations, which teach the format and how to copy numbers."""
    spoil_steps: Annotated[int, Field(ge=0)] = 40
    """Supervised steps on a mix with wrong demonstrations, which leaves room for improvement."""


class TinyVisionModelConfig(Config):
    """A vision model of a third of a million parameters (Qwen2-VL's architecture), made on this machine."""

    type: Literal["tiny_vision"] = "tiny_vision"
    seed: int = 0
    """Seed of its initial weights and of the supervised warm start."""
    warm_steps: Annotated[int, Field(ge=1)] = 120
    """Supervised steps on a mix with wrong demonstrations, which leaves room for improvement."""


ModelConfig = Annotated[PretrainedModelConfig | TinyModelConfig | TinyVisionModelConfig, Field(discriminator="type")]
