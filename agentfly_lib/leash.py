"""Ties what a command starts to the command's life: a `kill -9` of it leaves nothing behind.

Some of what runs below us outlives its parent, such as Prefect's embedded server. Everything started inside `leash()`
inherits a mark in its environment, and a watchdog ends whoever bears it once this process is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

from agentfly_lib import watchdog
from agentfly_lib.environment import variables

__all__ = ["leash", "marked_processes"]

_MARK = "AGENTFLY_LEASH"
_STOP_SECONDS = 30.0

_held = False
"""This process has one already."""


@contextlib.contextmanager
def leash() -> Iterator[None]:
    """What is started in this block ends with this process, however it ends. Within another leash it does nothing."""
    global _held
    if _held:
        yield
        return
    value = uuid4().hex
    command = [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), "--mark", f"{_MARK}={value}"]
    # Without the mark of a leash around this one, whose watchdog would end ours before it has looked.
    unmarked = {name: text for name, text in os.environ.items() if name != _MARK}
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=unmarked) as dog:
        _held = True
        try:
            with variables({_MARK: value}):
                yield
        finally:
            _held = False
            assert dog.stdin is not None
            dog.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                dog.wait(_STOP_SECONDS)


def marked_processes() -> set[int]:
    """Ids of the processes that were started inside the leash of this process; none if it has no leash."""
    value = os.environ.get(_MARK)
    return watchdog.processes_marked(f"{_MARK}={value}") if value else set()
