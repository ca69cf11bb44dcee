"""What a learner process is made for, and in: known to its caller without loading torch."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import LearnerError
from agentfly_lib.refs import ModelRef

__all__ = ["differences", "extensions_directory", "learner_fingerprint", "process_environment", "training_identity"]


def training_identity(config: RunConfig, model: ModelRef) -> dict[str, Any]:
    """Everything besides weights, optimizer state and shards that decides what an update computes, as plain JSON."""
    learner = config.learner
    trained: dict[str, Any] = {"freeze_vision": True} if learner.freeze_vision else {}
    if learner.lora is not None:
        late = {name for name in ("vision", "quantize") if not getattr(learner.lora, name)}  # unknown to older runs
        trained["lora"] = learner.lora.model_dump(mode="json", exclude=late)
    return ({"learner": trained} if trained else {}) | {
        "algorithm": config.algorithm.model_dump(mode="json"),
        "optim": config.optim.model_dump(mode="json"),
        "rollout": {
            "sampling": config.rollout.sampling.model_dump(mode="json"),
            "max_sampled_tokens": config.rollout.max_sampled_tokens,
        },
        "run": {"steps": config.run.steps},
        "model": model.fingerprint,
    }


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for every key of two identities that differs, sorted by key."""
    found: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key}: {before!r} -> {after!r}")
    return found


def learner_fingerprint(config: RunConfig, model: ModelRef) -> str:
    """Hash by which running ranks are told from those that another config or another model needs."""
    identity = training_identity(config, model) | {
        "learner": config.learner.model_dump(mode="json"),
        "path": str(model.path),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def process_environment(*, device: str, threads: int) -> dict[str, str]:
    """Environment variables that a learner process needs before torch and DeepSpeed are imported."""
    environment = {"TOKENIZERS_PARALLELISM": "false"}
    if device == "cpu":
        environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    return environment


def extensions_directory() -> Path:
    """Where torch builds extensions and loads them from: a folder of this user's cache that nobody else may enter.

    A folder of our own, because an interrupted build of another program leaves a lock on which everyone would wait.
    Raises `LearnerError` if it belongs to another user or cannot be made, for what lies in it is loaded as code.
    """
    from platformdirs import user_cache_path

    path = user_cache_path("agentfly") / "torch-extensions"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = path.lstat()
        if owner.st_uid != os.getuid() or not stat.S_ISDIR(owner.st_mode):
            raise LearnerError(
                f"{path} is not a directory of this user, and what lies in it would be loaded as code; remove it, or "
                "set TORCH_EXTENSIONS_DIR to a directory of your own"
            )
        path.chmod(0o700)
    except OSError as error:
        raise LearnerError(
            f"cannot use {path} for torch's extensions: {error.strerror}; set TORCH_EXTENSIONS_DIR to a directory of "
            "your own"
        ) from error
    return path
