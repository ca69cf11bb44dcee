"""One process at a time in a run directory.

The lock is the operating system's, on `run.lock`: it is gone the moment its holder dies, however it dies. Who holds it
stands in a file of its own, because taking a lock may empty the lock file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from agentfly_lib.errors import RunLockedError
from agentfly_lib.store.atomic import ensure_directory, write_json
from agentfly_lib.store.layout import RunDirectory

__all__ = ["RunLock"]


class RunLock:
    """`with RunLock(run_directory): ...`; raises `RunLockedError` naming the holder if the directory is in use."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._lock = FileLock(run.lock_file, thread_local=False)

    def __enter__(self) -> RunLock:
        ensure_directory(self._run.path)
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise RunLockedError(
                f"{self._run.path} is in use by {_holder(self._run.owner_file)}; "
                "wait for it, end it, or choose another run.name"
            ) from error
        try:
            write_json(self._run.owner_file, {"pid": os.getpid(), "host": socket.gethostname()})
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._run.owner_file.unlink()
        self._lock.release()


def _holder(owner_file: Path) -> str:
    try:
        owner = json.loads(owner_file.read_bytes())
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process that has just started"
