"""Files that are either whole or absent.

A file is written under a temporary name in its own directory, flushed to the disk, renamed to its final name, and the
directory entry is flushed too. The rename is the commit: a process that is killed before it leaves a `*.tmp` file that
nobody reads and `remove_leftovers` deletes; after it the file survives a power failure. A failing disk becomes a
`ShardError` that names the file and what to do, and the temporary file is gone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentfly_lib.errors import ShardError

__all__ = [
    "atomic_file",
    "ensure_directory",
    "read_json",
    "read_model",
    "remove_leftovers",
    "sync_directory",
    "write_bytes",
    "write_json",
    "write_model",
]

Model = TypeVar("Model", bound=BaseModel)

_SUFFIX = ".tmp"
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space or raise the quota",
    errno.EFBIG: "the file is larger than this process may write: raise its file-size limit (ulimit -f)",
    errno.EROFS: "the file system is read-only: mount it writable or choose another run.root",
    errno.EACCES: "permission is denied: make the directory writable for this user or choose another run.root",
    errno.EPERM: "the operation is not permitted: make the directory writable for this user or choose another run.root",
    errno.EIO: "the disk reports an input/output error: check the disk",
    errno.ENOENT: "the directory is gone: something removed it while the run was going on",
    errno.ENOTDIR: "a part of the path is a file, not a directory: move that file away",
    errno.EEXIST: "a part of the path is a file, not a directory: move that file away",
}


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what is written there becomes `path` when the block ends without an error.

    Missing directories are made. Raises `ShardError` if the file system refuses; whatever was at `path` before stays.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_SUFFIX}")
    try:
        ensure_directory(path.parent)
        yield temporary
        _sync_file(temporary)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        _discard(temporary)
        if error.errno not in _REMEDIES:
            raise
        raise ShardError(
            f"cannot write {path}: {_REMEDIES[error.errno]}, then run the same command again; "
            "everything written before this file is intact"
        ) from error
    except BaseException:
        _discard(temporary)
        raise


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Writes a whole file atomically and durably. Raises `ShardError` if the file system refuses."""
    with atomic_file(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically and durably; NaN and infinities are refused (`ValueError`)."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Reads a JSON file. Raises `ShardError` naming the file if it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ShardError(f"{path} is missing") from error
    except OSError as error:
        raise ShardError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ShardError(
            f"{path} is not valid JSON ({error}); restore it from a copy, or redo its stage (docs/operating.md, "
            "A damaged file)"
        ) from error


def write_model(path: Path, value: BaseModel) -> None:
    """Writes a model as a JSON file, as `write_json` does."""
    write_json(path, value.model_dump(mode="json"))


def read_model(path: Path, model: type[Model], *, remedy: str) -> Model:
    """Reads a JSON file that `write_model` wrote.

    Raises `ShardError` naming the file, what is wrong in it and, unless it is missing or no JSON, the remedy.
    """
    values = read_json(path)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ShardError(f"{path} is not one that this program can read ({faults}); {remedy}") from error


def ensure_directory(path: Path) -> None:
    """Makes a directory and its parents, each entry flushed to the disk."""
    missing: list[Path] = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def remove_leftovers(directory: Path) -> int:
    """Deletes the temporary files that killed writers left in `directory`; returns how many."""
    leftovers = list(directory.glob(f"*{_SUFFIX}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


def sync_directory(path: Path) -> None:
    """Flushes a directory's entries, so that a rename in it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
