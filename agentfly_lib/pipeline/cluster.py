"""Ray for the length of a flow run, and the run's actors in it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from agentfly_lib.configs import RunConfig
from agentfly_lib.ray_calls import abandoned_calls_end

__all__ = ["RunCluster"]

logger = logging.getLogger(__name__)

_END_SECONDS = 20.0


class RunCluster:
    """Ray is started, or joined, when somebody asks for it."""

    def __init__(self, config: RunConfig, *, namespace: str, trains: bool, closing: AsyncExitStack) -> None:
        """`closing` leaves the cluster; `trains` says whether there are ranks too."""
        self._config = config
        self._namespace = namespace
        self._trains = trains
        self._closing = closing
        self._ends_actors = False
        self.running = False
        """This process is connected to Ray."""

    async def start(self) -> None:
        """Starts or joins Ray; does nothing the second time. Raises `ConfigError` if it cannot be joined."""
        from agentfly_lib.cluster import start_ray

        if self.running:
            return
        config = self._config
        cpus = config.inference.replicas + 1 + (config.learner.ranks * config.learner.threads if self._trains else 0)
        cluster = start_ray(config.ray, cpus_needed=cpus, namespace=self._namespace)
        await asyncio.to_thread(cluster.__enter__)
        self.running = True

        async def leave() -> None:
            self.running = False
            await asyncio.to_thread(cluster.__exit__, None, None, None)

        self._closing.push_async_callback(leave)

    async def start_for_actors(self) -> None:
        """Starts or joins Ray, and ends the run's actors before it is left.

        On a shared cluster they outlive a killed driver, to be found again; they do not outlive a run that ends.
        """
        await self.start()
        if not self._ends_actors:
            self._ends_actors = True
            self._closing.push_async_callback(self._end_actors)

    async def _end_actors(self) -> None:
        from agentfly_lib.cluster import end_actors

        at_work = not await abandoned_calls_end(0.0)
        await asyncio.to_thread(end_actors, self._namespace)  # what waits for one of them hears of it
        if at_work:
            if not await abandoned_calls_end(_END_SECONDS):
                logger.warning("a call of Ray is still under way after %.0f s and is given up", _END_SECONDS)
            await asyncio.to_thread(end_actors, self._namespace)  # it may have made another
