"""A process that we start and watch: in a session of its own, its output in a log file, ended with all it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

__all__ = ["Child", "Process", "tail"]

_LOOK_SECONDS = 0.05
_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What is started, and how one knows that it is well."""

    name: str
    """As a person calls it: `Prefect server`."""
    command: Sequence[str]
    log: Path
    """Standard output and errors go here, after what earlier starts have left."""
    healthy: Callable[[], bool]
    """Asked until it says yes; must return within seconds and not raise."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to ours."""
    folder: Path | None = None
    """Working folder; ours if None."""
    stop_seconds: float = 15.0
    """How long it may take to end when it is asked to."""


class Process:
    """One start of a child."""

    def __init__(self, child: Child) -> None:
        self.child = child
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(child.command),
                env=os.environ | dict(child.environment),
                cwd=child.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit status, None while it lives."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """SIGTERM to the process and all that it has started."""
        self._signal(signal.SIGTERM)

    def end(self, seconds: float) -> None:
        """Waits up to `seconds` until nothing of its session is left, then kills what is."""
        deadline = time.monotonic() + seconds
        while self._members() and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(_LOOK_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _members(self) -> list[psutil.Process]:
        """Living processes of its session, its own among them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _signal(self, number: signal.Signals) -> None:
        for process in self._members():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


def tail(log: Path, *, lines: int = 12) -> str:
    """The last lines of a log, for a message."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
