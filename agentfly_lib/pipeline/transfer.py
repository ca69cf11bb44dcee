"""Weights from the learner's GPUs to the engines' without a file: both sides meet once, and then for every update.

The learner sends while the engines receive, so both are asked at the same time. Who met is known by process: when an
engine or a rank was replaced, all meet again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentfly_lib.inference.actor import engine_status, load_weights, open_transfer
from agentfly_lib.inference.canary import Canary
from agentfly_lib.inference.source import Transfer
from agentfly_lib.inference.transfer import ipc_update, nccl_meeting, nccl_update
from agentfly_lib.inference.weight_update import WeightUpdate
from agentfly_lib.refs import EngineRef
from agentfly_lib.training.ranks import Learner

__all__ = ["GpuTransfer"]


class GpuTransfer:
    """`inference.weight_transfer` `nccl` or `ipc`.

    A broadcast that breaks off ends the learner too, which starts again from its checkpoint.
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
            try:
                async with asyncio.TaskGroup() as group:
                    receiving = group.create_task(self._receive(engines, nccl_update(metas), version, canary))
                    group.create_task(learner.send(version, "broadcast"))
            except BaseException:
                learner.close()  # it may wait for ever for an engine that is gone, inside of NCCL
                raise
            return receiving.result()
        try:
            update = ipc_update(metas, await learner.send(version, "share"))
            return await self._receive(engines, update, version, canary)
        finally:
            await learner.send(version, "release")

    async def _receive(
        self, engines: EngineRef, update: dict[str, object], version: int, canary: Canary
    ) -> tuple[EngineRef, WeightUpdate]:
        return await asyncio.to_thread(
            load_weights, engines, Transfer(update), version=version, canary=canary, seconds=self._seconds
        )

    async def _meet(self, engines: EngineRef, learner: Learner, version: int) -> None:
        statuses = await asyncio.to_thread(engine_status, engines)
        there = ([each.pid for each in statuses], [each.pid for each in await learner.status()])
        if there == self._met:
            return
        if self._kind == "nccl":
            address, port = await learner.meeting_point()
            world = 1 + len(engines.names) * self._wide
            invitations = [
                nccl_meeting(address, port, first_rank=1 + number * self._wide, world=world)
                for number in range(len(engines.names))
            ]
            async with asyncio.TaskGroup() as group:
                group.create_task(self._open(engines, invitations))
                group.create_task(learner.send(version, "open", address, port, world))
        else:
            await self._open(engines, [{}] * len(engines.names))
        self._met = there

    async def _open(self, engines: EngineRef, invitations: Sequence[Mapping[str, Any]]) -> None:
        await asyncio.to_thread(open_transfer, engines, invitations, seconds=self._seconds)
