"""A disk that is full, said clearly: space is asked for before much is written, and what writers raise is named.

Safetensors and `torch.save` do not raise `OSError`: the one has an error of its own, the other a `RuntimeError`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from agentfly_lib.errors import ShardError

__all__ = ["free_bytes", "require_space", "writing"]

_TORCH_WRITER = ("inline_container", "PytorchStreamWriter")
"""What stands in the message of a `RuntimeError` that is about writing a file."""
_SLACK_BYTES = 2**20
"""For headers and the files that are not weighed."""


def free_bytes(directory: Path) -> int:
    """Bytes that this user may still write below a directory, which need not exist yet."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return shutil.disk_usage(directory).free


def require_space(path: Path, needed: int, free: int) -> None:
    """Raises `ShardError` if `path` needs more bytes than are free."""
    if needed + _SLACK_BYTES > free:
        raise ShardError(
            f"cannot write {path}: it needs {needed / 2**20:.0f} MiB and {free / 2**20:.0f} MiB are free; free space "
            "there and run the same command again. Nothing was written, and earlier files are untouched"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns whatever a writer of `path` raises about files into a `ShardError` that names it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise _named(path, error) from error
    except RuntimeError as error:
        if not any(word in str(error) for word in _TORCH_WRITER):
            raise
        raise _named(path, error) from error


def _named(path: Path, error: Exception) -> ShardError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ShardError(
        f"cannot write {path}: {reason}; free space there ({free_bytes(path.parent) / 2**20:.0f} MiB are free) and run "
        "the same command again. What was half written is removed, earlier files are untouched"
    )
