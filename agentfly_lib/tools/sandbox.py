"""What the tools that run in a sandbox have in common: its kind, and their limits.

Tools with the same settings of the sandbox share one per trajectory, and so see each other's files. It is opened at the
first call of any of them and closed at the end of the trajectory.
"""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentfly_lib.resources import PoolLimits, ProcessSpec, Sandbox
from agentfly_lib.resources.auto import AutoSandboxSpec
from agentfly_lib.resources.docker import ContainerSpec, Mount
from agentfly_lib.tools.call import ToolContext
from agentfly_lib.tools.settings import ToolSettings

__all__ = ["SandboxSettings", "SandboxSpec", "one_at_a_time", "sandbox_of"]

SandboxSpec: TypeAlias = ProcessSpec | ContainerSpec | AutoSandboxSpec

WAITING_CALLS = 8
"""Calls of one turn that may wait for each other."""
IMAGE = "agentfly-sandbox"
"""What `deployments/images/sandbox.Dockerfile` makes."""


class SandboxSettings(ToolSettings):
    """A sandbox, its limits (see `resources.ProcessSpec` and `ContainerSpec`), and those of one call in it."""

    sandbox: Literal["process", "docker", "auto"] = "process"
    """Behind bubblewrap, in a container, or in a container where there are a Docker engine and the image."""
    image: str = IMAGE
    """Of containers."""
    cpus: PositiveFloat = 1.0
    """Of containers."""
    warm: NonNegativeInt = 0
    """Sandboxes that are kept ready for trajectories to come."""
    cap: PositiveInt | None = None
    """Most sandboxes at the same time; trajectories beyond it wait."""
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
    def spec(self) -> SandboxSpec:
        """The sandbox."""
        if self.sandbox == "process":
            return self._process
        if self.sandbox == "docker":
            return self._container
        return AutoSandboxSpec(container=self._container, process=self._process)

    @property
    def _pool(self) -> PoolLimits:
        return PoolLimits(warm=self.warm, cap=self.cap, idle_seconds=0)

    @property
    def _process(self) -> ProcessSpec:
        return ProcessSpec(
            memory_mib=self.memory_mib,
            processes=self.processes,
            disk_mib=self.disk_mib,
            file_mib=self.disk_mib,
            read_only=self.packages,
            environment=_ONE_THREAD,
            pool=self._pool,
        )

    @property
    def _container(self) -> ContainerSpec:
        return ContainerSpec(
            image=self.image,
            cpus=self.cpus,
            memory_mib=self.memory_mib,
            processes=self.processes,
            disk_mib=self.disk_mib,
            file_mib=self.disk_mib,
            mounts=tuple(Mount(source=folder, target=folder) for folder in self.packages),
            environment=_ONE_THREAD,
            pool=self._pool,
        )

    @property
    def timeout(self) -> float:
        """Limit for a tool: the calls of one turn may have to wait for each other."""
        return WAITING_CALLS * self.seconds + 30.0


_ONE_THREAD: dict[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Packages with threads of their own would each start one per processor of the machine."""


def sandbox_of(context: ToolContext, spec: SandboxSpec) -> Sandbox:
    """The trajectory's sandbox, which the tool's `needs` has opened."""
    return context.resources[spec]


def one_at_a_time(context: ToolContext, what: str) -> asyncio.Lock:
    """Held by a call while it works on `what`; calls of one turn take it in their order."""
    return context.state.setdefault(f"lock:{what}", asyncio.Lock())
