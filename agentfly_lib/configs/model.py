"""Which policy is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentfly_lib.configs.base import Config

__all__ = ["ModelConfig", "PretrainedModelConfig", "TinyModelConfig", "TinyVisionModelConfig"]


class PretrainedModelConfig(Config):
    """Any Hugging Face causal language model: a local directory, or a hub id (the only thing that reaches a hub)."""

    type: Literal["pretrained"] = "pretrained"
    name_or_path: str
    """A directory with `config.json`, safetensors weights, a tokenizer and a chat template; or a hub id."""
    revision: str | None = None
    """Commit of a hub id."""


class TinyModelConfig(Config):
    """The half-million-parameter model that `agentfly model tiny` makes on this machine, in about a minute."""

    type: Literal["tiny"] = "tiny"
    seed: int = 0
    """Seed of its initial weights and of the supervised warm start."""
    warm_steps: Annotated[int, Field(ge=1)] = 400
    """Supervised steps on correct demonstrations: the format, and to copy numbers."""
    spoil_steps: Annotated[int, Field(ge=0)] = 40
    """Supervised steps on an imperfect mix, which leaves room to learn."""


class TinyVisionModelConfig(Config):
    """A model that sees, of a third of a million parameters (Qwen2-VL's architecture), made on this machine."""

    type: Literal["tiny_vision"] = "tiny_vision"
    seed: int = 0
    """Seed of its initial weights and of the supervised warm start."""
    warm_steps: Annotated[int, Field(ge=1)] = 120
    """Supervised steps on an imperfect mix of demonstrations, which leaves room to learn."""


ModelConfig = Annotated[PretrainedModelConfig | TinyModelConfig | TinyVisionModelConfig, Field(discriminator="type")]
