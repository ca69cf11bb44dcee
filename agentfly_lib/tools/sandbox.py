"""What the tools that run in a sandbox have in common: their limits, and how they show what a process printed.

Tools with the same limits share one sandbox per trajectory, and so see each other's files. It is opened at the first
call of any of them and closed at the end of the trajectory.
"""

from __future__ import annotations

import asyncio
import signal

from pydantic import Field, PositiveFloat, PositiveInt

from agentfly_lib.resources import Completed, Process, ProcessSpec
from agentfly_lib.tools.call import ToolContext
from agentfly_lib.tools.settings import ToolSettings

__all__ = ["SandboxSettings", "ending", "one_at_a_time", "sandbox_of", "shown"]

WAITING_CALLS = 8
"""Calls of one turn that may wait for each other."""


class SandboxSettings(ToolSettings):
    """Limits of a sandbox (see `resources.ProcessSpec`), and of one call in it."""

    seconds: PositiveFloat = 10.0
    """Limit of one call."""
    max_output_bytes: PositiveInt = 1 << 16
    """Of standard output, and as many of standard error; what comes after is thrown away."""
    memory_mib: PositiveInt = 512
    processes: PositiveInt = 64
    disk_mib: PositiveInt = 64
    packages: tuple[str, ...] = Field(default=())
    """Folders of Python packages (a `site-packages`) that code may import; they are visible in the sandbox."""

    @property
    def spec(self) -> ProcessSpec:
        """The sandbox."""
        return ProcessSpec(
            memory_mib=self.memory_mib,
            processes=self.processes,
            disk_mib=self.disk_mib,
            file_mib=self.disk_mib,
            read_only=self.packages,
            # Packages with threads of their own would each start one per processor of the machine.
            environment=dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        )

    @property
    def timeout(self) -> float:
        """Limit for a tool: the calls of one turn may have to wait for each other."""
        return WAITING_CALLS * self.seconds + 30.0


def sandbox_of(context: ToolContext, spec: ProcessSpec) -> Process:
    """The trajectory's sandbox, which the tool's `needs` has opened."""
    return context.resources[spec]


def one_at_a_time(context: ToolContext, what: str) -> asyncio.Lock:
    """Held by a call while it works on `what`; calls of one turn take it in their order."""
    return context.state.setdefault(f"lock:{what}", asyncio.Lock())


def shown(done: Completed, result: str | None = None) -> str:
    """Standard output and the result as they are, standard error under its own heading, and what was cut."""
    out = done.stdout.rstrip("\n") + _cut(done.cut_stdout)
    err = done.stderr.rstrip("\n") + _cut(done.cut_stderr)
    return "\n".join(part for part in (out, result, f"stderr:\n{err}" if err else "") if part)


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _cut(count: int) -> str:
    return f"\n[{count} more bytes were cut]" if count else ""
