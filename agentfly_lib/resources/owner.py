"""Whose a resource is, written on it before it starts, so that what a killed run left can be told from what is in use.

An owner is a process: its host, boot and pid namespace, its id and when it started. It is gone for certain only if this
process can look: on the same host, in the same pid namespace, or if the host has been booted anew since.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LABEL", "Owner", "owned_by", "this_owner"]

LABEL = "agentfly"
"""Labels are `agentfly.run`, `agentfly.pid`, ..., the fields of `Owner`."""

_run: ContextVar[str] = ContextVar("run", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, and the run that it works for."""

    run: str
    host: str
    boot: str
    namespace: str
    """Of process ids."""
    pid: int
    started: str
    """When, in ticks since the boot: another process may get the same id later."""

    def labels(self) -> dict[str, str]:
        return {f"{LABEL}.{name}": str(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Owner | None:
        """From labels; None if they are not ours."""
        try:
            values = {name: labels[f"{LABEL}.{name}"] for name in cls.__slots__}
            return cls(**{**values, "pid": int(values["pid"])})  # type: ignore[arg-type]
        except (KeyError, ValueError):
            return None

    @property
    def gone(self) -> bool | None:
        """Whether the process has ended; None if that cannot be seen from here."""
        here = this_owner()
        if self.host != here.host:
            return None
        if self.boot != here.boot:
            return True
        if self.namespace != here.namespace:
            return None
        return _started(self.pid) != self.started


def owned_by(run: str) -> None:
    """What this task makes from now on belongs to `run`."""
    _run.set(run)


def this_owner() -> Owner:
    """This process, working for the run of the current task."""
    host, boot, namespace = _machine()
    pid = os.getpid()
    return Owner(run=_run.get(), host=host, boot=boot, namespace=namespace, pid=pid, started=_started(pid) or "")


@functools.cache
def _machine() -> tuple[str, str, str]:
    return socket.gethostname(), Path("/proc/sys/kernel/random/boot_id").read_text().strip(), _namespace()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _started(pid: int) -> str | None:
    """None if there is no such process, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
