"""Ends what a killed driver leaves behind: a script of its own process, started by `cluster.local_ray`.

    python -I watchdog.py FOLDER

It waits until its standard input closes or its parent is gone, then kills every process that has a file open under
FOLDER, and removes FOLDER. All processes of a local Ray log under its temporary folder, and what they start inherits
their output, so that no list need be kept. A parent that lives is spared, as are its own children: Ray's have ended by
then, and the driver itself may hold a log open. Linux only; it uses nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

__all__ = ["main", "processes_using"]

_LOOK_SECONDS = 0.5
_SWEEP_SECONDS = 15.0


def processes_using(folder: Path) -> set[int]:
    """Ids of the processes (of this user, not this one) that have a file open under `folder`."""
    prefix, found = f"{folder}/", set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it ended, or is another user's
            for descriptor in os.scandir(process / "fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path).startswith(prefix):
                        found.add(int(process.name))
                        break
    return found


def parent_of(process: int) -> int:
    """The parent's id, 0 if the process is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def sweep(folder: Path, *, spare: int | None, seconds: float = _SWEEP_SECONDS) -> None:
    """Kill what uses `folder`, but for `spare` and its children, until two looks find nothing; then remove it."""
    deadline, clear = time.monotonic() + seconds, 0
    while clear < 2 and time.monotonic() < deadline:
        users = {process for process in processes_using(folder) if spare not in (process, parent_of(process))}
        for process in users:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        clear = 0 if users else clear + 1
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path) -> None:
    """Wait for the parent's end, then sweep."""
    parent, ended = os.getppid(), False
    while os.getppid() == parent and not ended:
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
        ended = bool(readable) and not os.read(0, 1)
    sweep(folder, spare=parent if os.getppid() == parent else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
