"""Ends what a killed driver leaves behind: a script of its own process, started by `cluster.start_ray` and `leash`.

    python -I watchdog.py PARENT FOLDER          whoever has a file open under FOLDER; then FOLDER itself
    python -I watchdog.py PARENT --mark NAME=X   whoever was started with this variable in its environment

It waits until its standard input closes or the process PARENT, which started it, is gone, then kills the processes it
looks for. All processes of a local Ray log under its temporary folder, and what they start inherits their output and
their environment, so that no list need be kept. A parent that lives is spared, as are its own children: they end with
it. Linux only; it uses nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["main", "processes_marked", "processes_using"]

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


def processes_marked(mark: str) -> set[int]:
    """Ids of the processes (of this user, not this one) started with `mark` (`NAME=VALUE`) in the environment."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):  # it ended, or is another user's
                if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.add(int(process.name))
    return found


def parent_of(process: int) -> int:
    """The parent's id, 0 if the process is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def sweep(look: Callable[[], set[int]], *, spare: int | None, seconds: float = _SWEEP_SECONDS) -> None:
    """Kill what `look` finds, but for `spare` and its children, until two looks find nothing."""
    deadline, clear = time.monotonic() + seconds, 0
    while clear < 2 and time.monotonic() < deadline:
        users = {process for process in look() if spare not in (process, parent_of(process))}
        for process in users:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        clear = 0 if users else clear + 1
        time.sleep(0.1)


def sweep_folder(folder: Path, *, spare: int | None, seconds: float = _SWEEP_SECONDS) -> None:
    """`sweep` of the users of a folder, which is then removed."""
    sweep(lambda: processes_using(folder), spare=spare, seconds=seconds)
    shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> None:
    """Wait for the parent's end, then sweep."""
    parent, ended = int(arguments[0]), False
    while os.getppid() == parent and not ended:
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
        ended = bool(readable) and not os.read(0, 1)
    spare = parent if os.getppid() == parent else None
    match arguments[1:]:
        case ["--mark", mark]:
            sweep(lambda: processes_marked(mark), spare=spare)
        case [name]:
            sweep_folder(Path(name).resolve(), spare=spare)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
