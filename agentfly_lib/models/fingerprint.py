"""What a model directory is, as one hash over the names and contents of its files.

Contents are always what counts, but a file of many gigabytes is read once only: its hash is remembered under its
path, size, modification time and inode in `fingerprints.json` of the cache directory. Losing that file costs time,
nothing else.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentfly_lib.errors import ModelError, ShardError
from agentfly_lib.store.atomic import read_json, write_json

__all__ = ["fingerprint_directory", "hash_files"]

_logger = logging.getLogger(__name__)
_REMEMBER_BYTES = 1 << 20
"""Smaller files are hashed every time."""
_MAX_REMEMBERED = 4096
_READERS = 4


def fingerprint_directory(directory: Path, *, cache: Path | None = None) -> str:
    """SHA-256 over the sorted relative names and contents of `directory`; files and folders named `.…` do not count.

    Hashes of large files are remembered in `cache`, if it is given. Raises `ModelError` if a file cannot be read.
    """
    digest = hashlib.sha256()
    for name, content in sorted(hash_files(directory, cache=cache).items()):
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def hash_files(directory: Path, *, cache: Path | None = None) -> dict[str, str]:
    """SHA-256 of every file below `directory`, by its relative name; see `fingerprint_directory`."""
    remembered = _Remembered(cache)
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not _hidden(path, directory)]
    try:
        # Hashing releases the interpreter lock, and the disk likes a few readers at once.
        with ThreadPoolExecutor(_READERS) as pool:
            hashes = list(pool.map(remembered.hash, files))
    except OSError as error:
        raise ModelError(
            f"cannot read {error.filename or directory}: {error.strerror}; make the model's files readable"
        ) from error
    remembered.save()
    return {path.relative_to(directory).as_posix(): value for path, value in zip(files, hashes, strict=True)}


class _Remembered:
    """Hashes of large files that this machine has read before."""

    def __init__(self, cache: Path | None) -> None:
        self._file = cache / "fingerprints.json" if cache is not None else None
        self._known: dict[str, str] = dict(self._load())
        self._changed = False

    def hash(self, path: Path) -> str:
        stat = path.stat()
        if self._file is None or stat.st_size < _REMEMBER_BYTES:
            return _sha256(path)
        key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}"
        if key not in self._known:
            self._known[key] = _sha256(path)
            self._changed = True
        return self._known[key]

    def save(self) -> None:
        """Two processes that save at once lose one's additions, which only means to hash again."""
        if self._file is None or not self._changed:
            return
        newest = list(self._known.items())[-_MAX_REMEMBERED:]
        try:
            write_json(self._file, dict(newest))
        except (OSError, ShardError) as error:
            _logger.warning("hashes of large model files are not remembered: %s", error)

    def _load(self) -> Mapping[str, str]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            content = read_json(self._file)
        except ShardError as error:
            _logger.warning("hashes of large model files are forgotten: %s", error)
            return {}
        return content if isinstance(content, dict) else {}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hidden(path: Path, directory: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(directory).parts)
