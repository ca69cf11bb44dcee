"""Low-rank adapters through `peft`: only they are trained, and only they are kept beside the optimizer's state.

Whoever reads weights gets them merged, W + (alpha / rank) B A under the names of the model itself, or the adapters
alone in peft's own format. The model without them is the starting policy.

LoRA: Hu et al. 2021, https://arxiv.org/abs/2106.09685, section 4.1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel

from agentfly_lib.configs import LoraConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.training.quantize import whole
from agentfly_lib.training.vision import TOWER, vision_tower

__all__ = [
    "adapter_files",
    "adapter_of",
    "add_adapters",
    "is_adapter",
    "merged",
    "model_name",
    "peft_name",
    "without_adapters",
]

_ADAPTER = "default"
_BASE = ".base_layer."


def add_adapters(model: PreTrainedModel, lora: LoraConfig, *, seed: int) -> None:
    """Freezes the model and puts adapters into its linear layers, in place; they change nothing until they are trained.
    The vision tower gets none unless `lora.vision` asks for them.

    `seed` decides their A, so that all ranks and all resumes begin alike. Raises `ConfigError` if `peft` is missing or
    the model has no such layers.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"learner.lora needs the package peft ({error}); pip install peft") from error
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type] - any number will do
        lora_dropout=0.0,
        target_modules=lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules),
        exclude_modules=None if lora.vision or vision_tower(model) is None else rf"(.*\.)?{TOWER}\..*",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
        except ValueError as error:
            raise ConfigError(f"learner.lora.target_modules={lora.target_modules!r}: {error}") from error
    for name in ("get_input_embeddings", "get_output_embeddings"):
        if hasattr(getattr(model, name)(), "base_layer"):
            raise ConfigError(
                "learner.lora.target_modules: embeddings and the output head take no adapters; name other layers"
            )
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return f".lora_A.{_ADAPTER}." in name or f".lora_B.{_ADAPTER}." in name


def model_name(name: str) -> str:
    """What the model itself calls a parameter that stands inside an adapted layer."""
    return name.replace(_BASE, ".")


def adapter_of(model: PreTrainedModel, name: str) -> tuple[torch.nn.Parameter, torch.nn.Parameter, float] | None:
    """A [rank, in], B [out, rank] and the factor of their product, of the weight with this name; None without."""
    owner, _, kind = name.rpartition(_BASE)
    if kind != "weight":
        return None
    layer = model.get_submodule(owner)
    return layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight, float(layer.scaling[_ADAPTER])  # type: ignore[index, union-attr]


def merged(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, factor: float) -> torch.Tensor:
    """weight + factor * B A, computed in float32 and rounded once, of the weight's type."""
    weight = whole(weight)
    return (weight.float() + factor * (b.float() @ a.float())).to(weight.dtype)


def adapter_files(model: PreTrainedModel, lora: LoraConfig, base: Path) -> dict[str, bytes]:
    """What readers of peft's format want beside the weights: `adapter_config.json`, with the adapted layers."""
    import peft

    targets = set(lora.target_modules)
    if isinstance(lora.target_modules, str):
        owners = [name.rpartition(".lora_A.")[0] for name, _ in model.named_parameters() if ".lora_A." in name]
        targets = {owner.rpartition(".")[2] for owner in owners}
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(base),
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type] - any number will do
        target_modules=sorted(targets),
        inference_mode=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def peft_name(name: str) -> str:
    """What peft calls a parameter of an adapter in its files."""
    return f"base_model.model.{name.replace(f'.{_ADAPTER}.', '.')}"


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Within the block the model is the one that it was made from. For measuring, not for gradients."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
