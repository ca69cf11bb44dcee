"""Where new weights come from, as an engine is told: a file, an adapter's folder, or a transfer that is under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentfly_lib.errors import EngineError

__all__ = ["AdapterFolder", "Transfer", "WeightSource", "require_present"]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """Low-rank adapters alone, in peft's format; they are added to the weights that the engine started with."""

    path: Path


@dataclass(frozen=True, slots=True)
class Transfer:
    """vLLM's own weight transfer, over what `EngineSettings.transfer` says: the learner sends while it is received."""

    update_info: Mapping[str, Any]
    """What vLLM's transfer engine wants to know of this update: names, types and shapes, and where they are."""


WeightSource = Path | AdapterFolder | Transfer
"""A path is a safetensors file of all weights."""


def require_present(source: WeightSource) -> None:
    """Raises `EngineError` if there is nothing to load, while nothing has been changed yet."""
    wanted = source if isinstance(source, Path) else None
    if isinstance(source, AdapterFolder):
        wanted = source.path / "adapter_model.safetensors"
    if wanted is not None and not wanted.is_file():
        raise EngineError(
            f"no weights at {wanted}; the learner must write them where the engine's process can read them"
        )
