"""Whether a run may reach a hub: only if its recipe names something that is nowhere else."""

from __future__ import annotations

from pathlib import Path

from agentfly_lib.configs.data import HubDataConfig
from agentfly_lib.configs.model import PretrainedModelConfig
from agentfly_lib.configs.run import RunConfig

__all__ = ["names_hub"]


def names_hub(config: RunConfig) -> bool:
    """The recipe asks for a dataset of a hub, or for a model that is no directory, seen from the working folder."""
    if isinstance(config.data, HubDataConfig):
        return True
    model = config.model
    return isinstance(model, PretrainedModelConfig) and not Path(model.name_or_path).expanduser().exists()
