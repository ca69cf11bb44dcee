"""A sandbox in a container where there is a Docker engine with its image, and behind bubblewrap where there is none."""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from agentfly_lib.errors import InfrastructureError, SandboxUnavailableError
from agentfly_lib.resources.docker import ContainerSpec
from agentfly_lib.resources.process import ProcessSpec
from agentfly_lib.resources.sandbox import Sandbox
from agentfly_lib.resources.spec import PoolLimits, opened

__all__ = ["AutoSandboxSpec"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSandboxSpec:
    """Both kinds with the same limits. Which one it is is found out once per process, and does not change in a run."""

    container: ContainerSpec
    process: ProcessSpec

    @property
    def pool(self) -> PoolLimits:
        return self.container.pool

    def check(self) -> None:
        """Raises `SandboxUnavailableError` if neither can be had here."""
        self.chosen().check()

    def chosen(self) -> ContainerSpec | ProcessSpec:
        """The kind that this machine can have; blocking."""
        return self.container if _has_containers(self.container) else self.process

    async def create(self) -> Sandbox:
        return await (await asyncio.to_thread(self.chosen)).create()

    def open(self) -> AbstractAsyncContextManager[Sandbox]:
        """One for the length of the block, outside of any pool."""
        return opened(self)


@functools.cache
def _has_containers(spec: ContainerSpec) -> bool:
    try:
        spec.check()
    except (SandboxUnavailableError, InfrastructureError) as error:
        logger.info("sandboxes are processes behind bubblewrap, not containers: %s", error)
        return False
    return True
