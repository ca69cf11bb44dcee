"""A checkpoint's weights as a model directory of their own: what other programs load, without the training state."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from agentfly_lib.errors import ShardError, UserError
from agentfly_lib.refs import CheckpointRef
from agentfly_lib.store.atomic import sync_directory
from agentfly_lib.training.checkpoint import MANIFEST, checkpoint_at, verify_checkpoint
from agentfly_lib.training.disk import free_bytes, require_space, writing

__all__ = ["export_checkpoint"]


def export_checkpoint(checkpoint: Path, output: Path) -> CheckpointRef:
    """Copies config, tokenizer, chat template and safetensors of a checkpoint to `output`, whole or not at all.

    Of a checkpoint that holds adapters alone, these, in peft's format.

    Every file of the checkpoint is compared with its manifest first. Raises `UserError` if `output` exists or
    `checkpoint` is not one, `ShardError` naming the file if it is damaged or the copy cannot be written.
    """
    if output.exists() or output.is_symlink():
        raise UserError(f"{output} exists; name a folder that does not, or remove it")
    if not (checkpoint / MANIFEST).is_file():
        raise UserError(f"{checkpoint} is not a checkpoint (no {MANIFEST}).{_near(checkpoint)}")
    ref = checkpoint_at(checkpoint)
    verify_checkpoint(ref)
    source, wanted = checkpoint / "hf", ("config.json", "model.safetensors")
    if not (source / wanted[1]).is_file() and (checkpoint / "adapter").is_dir():
        source, wanted = checkpoint / "adapter", ("adapter_config.json", "adapter_model.safetensors")
    if missing := [name for name in wanted if not (source / name).is_file()]:
        raise ShardError(f"{source} holds no {missing[0]}; export another checkpoint")
    temporary = output.with_name(f".{output.name}.{uuid.uuid4().hex}.tmp")
    try:
        with writing(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
            require_space(output, size, free_bytes(output.parent))
            shutil.copytree(source, temporary)
            for file in temporary.rglob("*"):
                with file.open("rb") as copied:
                    os.fsync(copied.fileno())
            sync_directory(temporary)
            temporary.rename(output)
            sync_directory(output.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return ref


def _near(path: Path) -> str:
    """Checkpoints that may have been meant, where a run or its folder of checkpoints was named."""
    found = sorted(item.parent for folder in (path, path / "checkpoints") for item in folder.glob(f"*/{MANIFEST}"))
    return f" Checkpoints there: {', '.join(map(str, found))}" if found else ""
