"""Weights from the learner's GPUs to the engines' without a file: both sides meet once, and then for every update.

The learner sends while the engines receive, so both are asked at the same time. Who met is known by process: when an
engine or a rank was replaced, all meet again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

from agentfly_lib.inference.actor import engine_status, load_weights, open_transfer, stop_engines
from agentfly_lib.inference.source import Transfer
from agentfly_lib.inference.transfer import ipc_update, nccl_meeting, nccl_update
from agentfly_lib.inference.weight_update import WeightUpdate, furthest
from agentfly_lib.ray_calls import ray_call
from agentfly_lib.refs import EngineRef
from agentfly_lib.training.ranks import Learner
from agentfly_lib.types import Canary

__all__ = ["GpuTransfer"]


class GpuTransfer:
    """`inference.weight_transfer` `nccl` or `ipc`.

    When a meeting or a broadcast breaks off, both sides are ended: whoever is left alone in it waits inside of NCCL for
    those who are gone, and hears nothing. Engines start anew, and the learner from its checkpoint.
    """

    def __init__(self, kind: Literal["nccl", "ipc"], *, tensor_parallel: int, seconds: float) -> None:
        """`seconds` is the limit of an engine, for each meeting and each reception."""
        self._kind = kind
        self._wide = tensor_parallel
        self._seconds = seconds
        self._met: tuple[list[int], list[int]] | None = None

    async def send(
        self, engines: EngineRef, learner: Learner, *, version: int, canary: Canary
    ) -> tuple[EngineRef, WeightUpdate]:
        """As `load_weights`, with the learner's weights as they are now."""
        await self._meet(engines, learner, version)
        metas = (await learner.send(version, "describe"))[0]
        if self._kind == "nccl":
            async with self._both_or_neither(engines, learner), asyncio.TaskGroup() as group:
                update = nccl_update(metas)
                receiving = [group.create_task(self._receive(one, update, version, canary)) for one in _each(engines)]
                group.create_task(learner.send(version, "broadcast"))
            engines = engines.model_copy(update={"policy_version": version})
            return engines, furthest([task.result()[1] for task in receiving])
        try:
            update = ipc_update(metas, await learner.send(version, "share"))
            return await self._receive(engines, update, version, canary)
        finally:
            await learner.send(version, "release")

    async def _receive(
        self, engines: EngineRef, update: dict[str, object], version: int, canary: Canary
    ) -> tuple[EngineRef, WeightUpdate]:
        return await ray_call(
            load_weights, engines, Transfer(update), version=version, canary=canary, seconds=self._seconds
        )

    async def _meet(self, engines: EngineRef, learner: Learner, version: int) -> None:
        statuses = await ray_call(engine_status, engines)
        there = ([each.pid for each in statuses], [each.pid for each in await learner.status()])
        if there == self._met:
            return
        if self._kind == "nccl":
            address, port = await learner.meeting_point()
            world = 1 + len(engines.names) * self._wide
            async with self._both_or_neither(engines, learner), asyncio.TaskGroup() as group:
                for number, one in enumerate(_each(engines)):
                    invitation = nccl_meeting(address, port, first_rank=1 + number * self._wide, world=world)
                    group.create_task(self._open(one, invitation))
                group.create_task(learner.send(version, "open", address, port, world))
        else:
            for one in _each(engines):
                await self._open(one, {})
        self._met = there

    async def _open(self, engine: EngineRef, invitation: Mapping[str, Any]) -> None:
        await ray_call(open_transfer, engine, [invitation], seconds=self._seconds)

    @asynccontextmanager
    async def _both_or_neither(self, engines: EngineRef, learner: Learner) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            self._met = None
            await ray_call(_end, engines, learner)
            raise


def _each(engines: EngineRef) -> list[EngineRef]:
    """One by one, so that the first failure is heard of at once, whatever the others wait for."""
    return [engines.model_copy(update={"names": (name,)}) for name in engines.names]


def _end(engines: EngineRef, learner: Learner) -> None:
    learner.close()
    stop_engines(engines)
