"""The config of a flow that uses a policy without training it."""

from __future__ import annotations

from pathlib import Path

from agentfly_lib.configs import PretrainedModelConfig, RunConfig
from agentfly_lib.errors import ModelError
from agentfly_lib.training.checkpoint import checkpoint_at, verify_checkpoint

__all__ = ["policy_config"]


def policy_config(config: RunConfig, policy: Path | None, *, suffix: str) -> RunConfig:
    """The config with `policy` as its model (a checkpoint, a model directory, or the recipe's own model if None).

    The run is renamed, because it is not the training run: `demo` becomes `demo-evaluate-000030`. A checkpoint's files
    are checked against their hashes first. Raises `ModelError` if there is no such directory, `ShardError` naming a
    damaged file.
    """
    if policy is None:
        return config.model_copy(update={"run": config.run.model_copy(update={"name": f"{config.run.name}-{suffix}"})})
    if not policy.is_dir():
        raise ModelError(
            f"{policy} is neither a checkpoint nor a model directory; checkpoints lie in <run>/checkpoints/"
        )
    model = policy
    if (policy / "hf").is_dir():
        verify_checkpoint(checkpoint_at(policy))
        model = policy / "hf"
    name = f"{config.run.name}-{suffix}-{policy.resolve().name}"
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"name": name}),
            "model": PretrainedModelConfig(name_or_path=str(model.resolve())),
        }
    )
