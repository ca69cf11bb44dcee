"""`generation_config` of a run: the names that the Hugging Face and vLLM worlds use, checked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveInt, ValidationError

from agentfly_lib.configs.faults import explain
from agentfly_lib.configs.inference import SamplingConfig
from agentfly_lib.errors import ConfigError

__all__ = ["GenerationConfig"]

_ALIASES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
}


class GenerationConfig(SamplingConfig):
    """How one run samples."""

    max_tokens: PositiveInt = 1024
    """Tokens of one turn."""
    temperature: NonNegativeFloat = 1.0
    """0 takes the most probable token each time."""
    do_sample: bool = True
    """False is the same as temperature 0."""
    seed: Annotated[int, Field(ge=0, lt=2**62)] = Field(default_factory=lambda: secrets.randbits(62))
    """The same seed gives the same run; drawn anew if unset."""

    @classmethod
    def read(cls, values: Mapping[str, Any] | None) -> GenerationConfig:
        """Raises `ConfigError` naming each key that cannot be used."""
        renamed = {_ALIASES.get(key, key): value for key, value in (values or {}).items()}
        if renamed.get("top_k") == -1:  # "all tokens" in vLLM's words
            renamed["top_k"] = 0
        if isinstance(renamed.get("stop"), str):
            renamed["stop"] = (renamed["stop"],)
        try:
            return cls.model_validate(renamed)
        except ValidationError as error:
            raise ConfigError(explain(error, cls.model_fields, where="generation_config")) from error

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or not self.do_sample

    @property
    def sampling(self) -> SamplingConfig:
        values = {name: getattr(self, name) for name in SamplingConfig.model_fields}
        return SamplingConfig.model_validate(values | {"temperature": self.temperature or 1.0})
