"""The config of a flow that uses a policy without training it."""

from __future__ import annotations

import re
from pathlib import Path

from agentfly_lib.configs import PretrainedModelConfig, RunConfig, RunSection
from agentfly_lib.errors import ConfigError, ModelError
from agentfly_lib.store.recorded import recorded_config
from agentfly_lib.training.checkpoint import checkpoint_at, newest_checkpoint, verify_checkpoint

__all__ = ["policy_config", "recorded_recipe"]

_LONGEST_NAME = 100
"""Of a run (`RunSection.name`)."""


def recorded_recipe(checkpoint: Path, root: Path) -> RunConfig:
    """The recipe that the run of a checkpoint has written down. Raises `ConfigError` if no run in `root` has it.

    For who is told of a checkpoint by somebody that need not be trusted: a recipe is code.
    """
    found = checkpoint.resolve()
    run = found.parent.parent
    if found.parent.name != "checkpoints" or run.parent != root.resolve() or not found.is_dir():
        raise ConfigError(f"{checkpoint} is not a checkpoint of a run in {root.resolve()}")
    return recorded_config(run)


def policy_config(config: RunConfig, policy: Path | None, *, suffix: str) -> RunConfig:
    """The config with `policy` as its model.

    `policy` is a checkpoint, a run (its newest checkpoint), a model directory, or None for the recipe's own model.

    The run is renamed, because it is not the training run: `demo` becomes `demo-evaluate-000030`. A checkpoint's files
    are checked against their hashes first. Raises `ModelError` if there is no such directory, `ShardError` naming a
    damaged file.
    """
    if policy is None:
        return config.model_copy(update={"run": _renamed(config.run, suffix)})
    if not policy.is_dir():
        raise ModelError(
            f"{policy} is neither a checkpoint nor a model directory; checkpoints lie in <run>/checkpoints/"
        )
    if (policy / "checkpoints").is_dir():
        newest = newest_checkpoint(policy / "checkpoints", tidy=False)
        if newest is None:
            raise ModelError(f"{policy} has no checkpoint yet")
        policy = newest.path
    model = policy
    if (policy / "hf").is_dir():
        verify_checkpoint(checkpoint_at(policy))
        model = policy / "hf"
        if not (model / "model.safetensors").exists():
            raise ModelError(
                f"{policy} holds adapters alone (checkpoint.adapters_only); merge {policy / 'adapter'} into the model "
                "that it was trained on with peft, and name the folder of the result"
            )
    return config.model_copy(
        update={
            "run": _renamed(config.run, f"{suffix}-{policy.resolve().name}"),
            "model": PretrainedModelConfig(name_or_path=str(model.resolve())),
        }
    )


def _renamed(run: RunSection, suffix: str) -> RunSection:
    """The section with a name that ends in `suffix`, as far as a name can; what is too long is cut out before it."""
    end = "-" + re.sub(r"[^A-Za-z0-9._-]", "-", suffix)[: _LONGEST_NAME // 2]
    return RunSection.model_validate(run.model_dump() | {"name": run.name[: _LONGEST_NAME - len(end)] + end})
