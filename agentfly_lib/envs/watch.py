"""A process that minds another: `watched` forks, and whatever the child starts ends with it, or with us.

The parent becomes the watcher. It waits until the descriptor that it was given hangs up (whoever held the other end is
gone, or wants no more) or until the child ends; then it kills the child and every process that descends from it, also
those that made themselves daemons, and ends as the child did. It does nothing else, so nothing can keep it from that.
Linux only; the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from pathlib import Path
from types import FrameType

__all__ = ["watched"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_MILLISECONDS = 1000


def watched(lifeline: int) -> None:
    """Returns in the child. `lifeline` is a pipe or socket that nobody reads in the parent."""
    watcher = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans below become our children, wherever they have gone
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, _asked_to_end)
        try:
            status = _watch(child, lifeline)
        except SystemExit:
            status = None
        _kill_descendants()
        os._exit(0 if status is None else os.waitstatus_to_exitcode(status) & 0xFF)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:
        os._exit(0)


def _watch(child: int, lifeline: int) -> int | None:
    """The child's wait status once it has ended; None if the lifeline has hung up before."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(lifeline, 0)  # hanging up is told without being asked for
    poll.register(ended, select.POLLIN)
    while True:
        happened = dict(poll.poll(_LOOK_MILLISECONDS))
        if ended in happened:
            return os.waitpid(child, 0)[1]
        if lifeline in happened:
            return None
        _reap(but=child)


def _reap(*, but: int) -> None:
    """Takes note of orphans that have ended, which would stay in the process table otherwise."""
    for process in _children():
        if process != but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)


def _kill_descendants() -> None:
    # What a killed process leaves behind becomes our child, so this comes to an end when there is nobody left.
    while children := _children():
        for process in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _children() -> list[int]:
    found, own = [], str(os.getpid())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError, IndexError):  # it has ended
                if (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                    found.append(int(process.name))
    return found


def _asked_to_end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
