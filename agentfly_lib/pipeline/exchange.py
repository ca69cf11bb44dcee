"""Where weights lie on their way from the learner to the engines: a private folder, in shared memory where it can."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path

from agentfly_lib.errors import ConfigError
from agentfly_lib.store.layout import RunDirectory

__all__ = ["Exchange", "exchange_path"]


def exchange_path(run: RunDirectory) -> Path:
    """The folder of this run, whether it is there or not."""
    memory = Path("/dev/shm")  # noqa: S108 - private by mode, and named after the run
    root = memory if memory.is_dir() else Path(tempfile.gettempdir())
    return root / f"agentfly-{hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()[:16]}"


class Exchange:
    """The folder of one run, made when somebody asks for it.

    It has the same name in every start of the run, so that what a killed one left is used again.
    """

    def __init__(self, run: RunDirectory, closing: AsyncExitStack) -> None:
        """`closing` removes the folder."""
        self._run = run
        self._closing = closing

    @cached_property
    def folder(self) -> Path:
        """Raises `ConfigError` if somebody else's lies there."""
        path = exchange_path(self._run)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(f"{path} is not a private folder of this user; remove it, weights are exchanged there")
        self._closing.callback(shutil.rmtree, path, ignore_errors=True)
        return path
