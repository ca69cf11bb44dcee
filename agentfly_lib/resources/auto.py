"""A sandbox in a container where there is a Docker engine with its image, and behind bubblewrap where there is none."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentfly_lib.errors import InfrastructureError, SandboxUnavailableError
from agentfly_lib.resources.docker import ContainerSpec
from agentfly_lib.resources.process import ProcessSpec
from agentfly_lib.resources.sandbox import Sandbox
from agentfly_lib.resources.spec import PoolLimits

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

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sandbox]:
        """One for the length of the block, outside of any pool."""
        sandbox = await self.create()
        try:
            yield sandbox
        finally:
            await sandbox.close()


@functools.cache
def _has_containers(spec: ContainerSpec) -> bool:
    try:
        spec.check()
    except (SandboxUnavailableError, InfrastructureError) as error:
        logger.info("sandboxes are processes behind bubblewrap, not containers: %s", error)
        return False
    return True
