"""Checkpoints that are either complete or not there.

    000012/
        deepspeed/      optimizer and weights as the ranks hold them, one file per rank
        hf/             config, tokenizer, `model.safetensors`: loads with `from_pretrained` and in vLLM
        state.json      counters, and what must be equal to go on from here
        MANIFEST.json   size and sha256 of every other file

All of it is written beside the final name, flushed, and renamed: the rename is the commit. DeepSpeed's part is pickled,
so nothing is read from a checkpoint whose files do not match its manifest, or that holds a file the manifest does not
name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentfly_lib.configs import LearnerConfig
from agentfly_lib.errors import ConfigError, ShardError, first_line
from agentfly_lib.refs import CheckpointRef
from agentfly_lib.store.atomic import sync_directory, write_json

__all__ = [
    "MANIFEST",
    "CheckpointState",
    "checkpoint_at",
    "copy_model_files",
    "newest_checkpoint",
    "prune",
    "read_state",
    "require_resumable",
    "seal",
    "staging_directory",
    "verify_checkpoint",
]

logger = logging.getLogger(__name__)

FORMAT = 2
MANIFEST = "MANIFEST.json"
"""Lists the files of a checkpoint with their hashes; written last."""
STATE = "state.json"
_NAME = re.compile(r"\d{6,}")
_STAGING = ".tmp"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx", ".index.json")


class CheckpointState(BaseModel):
    """`state.json`. The learner has no random state: what it computes is a function of weights, step and shards."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    format: int = FORMAT
    policy_version: int
    """Also the steps done: the next one trains on the problems of this step."""
    nonfinite_in_row: int
    ranks: int
    zero_stage: int
    dtype: str
    trained_with: dict[str, Any]
    """What decides an update besides weights and shards (`training_identity`); must be equal to go on from here."""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    bytes: int
    sha256: str


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    files: tuple[_File, ...]


def staging_directory(path: Path) -> Path:
    """Where the checkpoint `path` is written before it is sealed."""
    return path.with_name(path.name + _STAGING)


def seal(path: Path, state: CheckpointState) -> CheckpointRef:
    """Turns the complete staging directory of `path` into the checkpoint: state, manifest, flush, rename.

    A checkpoint that already stands at `path` is replaced.
    """
    staging = staging_directory(path)
    write_json(staging / STATE, state.model_dump())
    files = []
    for name in _files(staging):
        size, digest = _hash_and_flush(staging / name)
        files.append(_File(path=name, bytes=size, sha256=digest))
    write_json(staging / MANIFEST, _Manifest(format=FORMAT, files=tuple(files)).model_dump())
    for directory in [staging, *(item for item in staging.rglob("*") if item.is_dir())]:
        sync_directory(directory)
    if path.exists():
        old = path.with_name(f"{path.name}.old{_STAGING}")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        staging.rename(path)
        shutil.rmtree(old)
    else:
        staging.rename(path)
    sync_directory(path.parent)
    return _ref(path, state.policy_version)


def newest_checkpoint(directory: Path, *, tidy: bool = True) -> CheckpointRef | None:
    """The complete checkpoint with the highest version, or None.

    Completeness is judged by manifest and file sizes; `verify_checkpoint` compares contents. `tidy` deletes what killed
    writers left behind: only for the one process that may write there.
    """
    if not directory.is_dir():
        return None
    for old in directory.glob(f"*.old{_STAGING}") if tidy else ():
        final = directory / old.name.removesuffix(f".old{_STAGING}")
        if not final.exists():  # killed between the two renames that replace a checkpoint
            old.rename(final)
    for leftover in directory.glob(f"*{_STAGING}") if tidy else ():
        logger.info("removing the unfinished checkpoint %s", leftover)
        shutil.rmtree(leftover)
    for path in sorted(_checkpoints(directory), key=lambda item: int(item.name), reverse=True):
        try:
            _check_sizes(path)
            return _ref(path, read_state(path).policy_version)
        except ShardError as error:
            logger.warning("ignoring the checkpoint %s: %s", path, error)
    return None


def checkpoint_at(path: Path) -> CheckpointRef:
    """The checkpoint in this directory. Raises `ShardError` if there is none or its state cannot be read."""
    return _ref(path, read_state(path).policy_version)


def verify_checkpoint(ref: CheckpointRef) -> None:
    """Proves that this is the checkpoint that was named, bit by bit. Raises `ShardError` naming the file at fault."""
    if _digest(ref.path) != ref.digest:
        raise ShardError(
            f"{ref.path / MANIFEST} is not the manifest that was named (expected sha256 {ref.digest[:12]}…); "
            f"the checkpoint was replaced or damaged"
        )
    for file in _check_sizes(ref.path):
        digest = _hash_and_flush(ref.path / file.path, flush=False)[1]
        if digest != file.sha256:
            raise ShardError(
                f"{ref.path / file.path} does not match its checksum: {digest[:12]}… instead of {file.sha256[:12]}…; "
                f"delete {ref.path} to go on from an older checkpoint"
            )


def require_resumable(learner: LearnerConfig, checkpoint: Path) -> None:
    """Raises `ConfigError` if the learner cannot go on from a checkpoint, whatever that holds."""
    if learner.offload.optimizer == "nvme":
        raise ConfigError(
            f"{checkpoint} cannot be resumed from: DeepSpeed does not restore the moments of an optimizer that is kept "
            f'on a disk (learner.offload.optimizer="nvme"). Start a new run from {checkpoint / "hf"}, with '
            'learner.offload.optimizer="cpu" if it is to be resumed'
        )


def read_state(path: Path) -> CheckpointState:
    """`state.json` of a checkpoint. Raises `ShardError` if it is missing, damaged or of another format."""
    try:
        values: Any = json.loads((path / STATE).read_bytes())
        found = values.get("format") if isinstance(values, dict) else None
        if isinstance(found, int) and found != FORMAT:
            raise ShardError(f"{path / STATE} has format {found}, this program reads format {FORMAT}")
        return CheckpointState.model_validate(values)
    except (OSError, ValueError) as error:
        raise ShardError(f"{path / STATE} cannot be read: {first_line(error)}") from error


def prune(
    directory: Path, keep_last: int, *, keep_best: int = 0, rewards: Mapping[int, float] | None = None
) -> list[Path]:
    """Deletes all complete checkpoints but the newest `keep_last` and the `keep_best` with the highest reward.

    `rewards` are held-out rewards by version; a version that has none cannot be among the best, and of equal ones the
    newer is kept. The newest checkpoint always stays. Returns what was deleted, newest first.
    """
    rewards = rewards or {}
    ordered = sorted(_checkpoints(directory), key=lambda item: int(item.name), reverse=True)
    judged = [item for item in ordered if int(item.name) in rewards]
    best = sorted(judged, key=lambda item: (rewards[int(item.name)], int(item.name)), reverse=True)[:keep_best]
    doomed = [item for item in ordered[max(1, keep_last) :] if item not in best]
    for path in doomed:
        gone = staging_directory(path)  # renamed first: a killed deletion must not look like a checkpoint
        path.rename(gone)
        shutil.rmtree(gone)
    return doomed


def copy_model_files(source: Path, target: Path) -> None:
    """Copies what a model directory holds besides weights: config, tokenizer, chat template."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.is_file() and not file.name.startswith(".") and not file.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copyfile(file, target / file.name)


def _ref(path: Path, policy_version: int) -> CheckpointRef:
    return CheckpointRef(path=path, policy_version=policy_version, digest=_digest(path))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        raise ShardError(f"{path / MANIFEST} cannot be read: {error.strerror}; {path} is not a checkpoint") from error


def _check_sizes(path: Path) -> tuple[_File, ...]:
    try:
        values: Any = json.loads((path / MANIFEST).read_bytes())
        manifest = _Manifest.model_validate(values)
    except (OSError, ValueError, RecursionError) as error:
        raise ShardError(f"{path / MANIFEST} cannot be read: {first_line(error)}") from error
    if manifest.format != FORMAT:
        raise ShardError(f"{path / MANIFEST} has format {manifest.format}, this program reads format {FORMAT}")
    for file in manifest.files:
        item = path / file.path
        if not item.is_file():
            raise ShardError(f"{item} is missing")
        if item.stat().st_size != file.bytes:
            raise ShardError(f"{item} has {item.stat().st_size} bytes instead of {file.bytes}")
    strangers = set(_files(path)) - {file.path for file in manifest.files} - {MANIFEST}
    if strangers:
        raise ShardError(f"{path / min(strangers)} does not belong to the checkpoint; remove it")
    return manifest.files


def _checkpoints(directory: Path) -> list[Path]:
    return [item for item in directory.iterdir() if item.is_dir() and _NAME.fullmatch(item.name)]


def _files(path: Path) -> list[str]:
    return sorted(item.relative_to(path).as_posix() for item in path.rglob("*") if not item.is_dir())


def _hash_and_flush(path: Path, *, flush: bool = True) -> tuple[int, str]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if flush:
                os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size, digest
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}") from error
