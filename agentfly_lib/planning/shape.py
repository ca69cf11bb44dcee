"""The size of a model, from its `config.json` alone: no weights are read, and none fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentfly_lib.configs.model import (
    ModelConfig,
    PretrainedModelConfig,
    TinyModelConfig,
    TinyVisionModelConfig,
)
from agentfly_lib.errors import ModelError, first_line

__all__ = ["ModelShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What memory depends on."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    key_value: int
    """Width of all keys of one token and layer, and of all values."""
    vocabulary: int
    linear_widths: Mapping[str, int] = field(default_factory=dict)
    """Inputs plus outputs of the linear layers by name, summed over layers of that name; without the output head, and
    without the vision tower."""
    tower: int = 0
    """Parameters of the vision tower; they are among `parameters`."""
    tower_widths: Mapping[str, int] = field(default_factory=dict)
    """As `linear_widths`, of the vision tower."""

    @property
    def linear_parameters(self) -> int:
        """Weights of the decoder's linear layers, without the output head."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.key_value
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    def adapter_parameters(
        self, rank: int, layers: Literal["all-linear"] | Sequence[str], *, vision: bool = False
    ) -> int:
        """Parameters of low-rank adapters at these layers (arXiv 2106.09685): rank x (inputs + outputs) each.

        vision: those of the vision tower too.
        """
        parts = (self.linear_widths, self.tower_widths) if vision else (self.linear_widths,)
        widths = (part.get(name, 0) for part in parts for name in (part if layers == "all-linear" else layers))
        return rank * sum(widths)

    @classmethod
    def of(cls, config: ModelConfig) -> ModelShape:
        """Of a recipe's model, from its folder or the cache. Raises `ModelError` if its `config.json` is not there."""
        match config:
            case TinyModelConfig():
                return cls.from_config(_tiny_config())
            case TinyVisionModelConfig():
                return cls.from_config(_tiny_vision_config())
            case PretrainedModelConfig():
                return cls.from_config(_read(config))

    @classmethod
    def from_config(cls, config: Any) -> ModelShape:
        """Of a `transformers` configuration. Raises `ModelError` if it describes no causal language model."""
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        from agentfly_lib.training.vision import vision_tower

        kind = AutoModelForCausalLM if getattr(config, "vision_config", None) is None else AutoModelForImageTextToText
        try:
            with torch.device("meta"):
                model = kind.from_config(config)
        except (ValueError, AttributeError, TypeError) as error:
            raise ModelError(f"{type(config).__name__} does not describe a causal language model: {error}") from error
        text, tower = config.get_text_config(), vision_tower(model)
        heads = text.num_attention_heads
        return cls(
            parameters=model.num_parameters(),
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            key_value=(getattr(text, "num_key_value_heads", None) or heads)
            * (getattr(text, "head_dim", None) or text.hidden_size // heads),
            vocabulary=text.vocab_size,
            linear_widths=_linear_widths(model, [model.get_output_embeddings(), *(tower.modules() if tower else ())]),
            tower=sum(parameter.numel() for parameter in tower.parameters()) if tower else 0,
            tower_widths=_linear_widths(tower, ()) if tower else {},
        )


def _linear_widths(model: Any, without: Iterable[Any]) -> dict[str, int]:
    import torch

    widths: Counter[str] = Counter()
    left_out = {id(module) for module in without}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and id(module) not in left_out:
            widths[name.rpartition(".")[2]] += module.in_features + module.out_features
    return dict(widths)


def _read(config: PretrainedModelConfig) -> Any:
    from transformers import AutoConfig

    name = config.name_or_path
    path = Path(name).expanduser()
    try:
        return AutoConfig.from_pretrained(
            path if path.is_dir() else name,
            revision=config.revision,
            trust_remote_code=False,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise ModelError(
            f"the size of {name!r} is not known, because its config.json cannot be read here ({reason}); name a folder "
            "that holds it (agentfly plan --shape-from DIRECTORY)"
        ) from error


def _tiny_config() -> Any:
    from agentfly_lib.models.demonstrations import vocabulary_corpus
    from agentfly_lib.models.tiny import network_config
    from agentfly_lib.models.tokenizer import build_tokenizer

    return network_config(build_tokenizer(vocabulary_corpus()))


def _tiny_vision_config() -> Any:
    from agentfly_lib.models.tiny_vision import build_vision_tokenizer, vision_network_config

    return vision_network_config(build_vision_tokenizer())
