"""The engines of a session: asked, replaced when they die, given weights, put to sleep, lent to whoever collects.

An engine that is lost while others go on is replaced beside them: it is given the weights that they serve, and proven
by the same canary, before it gets a request. If that cannot be done, the next stage does it. What changes engines runs
under one lock, so that none is given two sets of weights at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from weakref import WeakSet

from agentfly_lib.cluster import gpu_count
from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import CanaryError, EngineError
from agentfly_lib.inference.actor import (
    engine_status,
    ensure_engines,
    load_weights,
    prove,
    sleep_engines,
    wake_engines,
)
from agentfly_lib.inference.client import EngineLoss, RayGenerate, find_engines
from agentfly_lib.inference.placement import Placement, place, serves_adapters
from agentfly_lib.inference.source import AdapterFolder, WeightSource
from agentfly_lib.inference.weight_update import WeightUpdate
from agentfly_lib.pipeline.background import Background
from agentfly_lib.pipeline.exchange import Exchange
from agentfly_lib.pipeline.learning import Learning
from agentfly_lib.pipeline.times import StepTimes
from agentfly_lib.pipeline.transfer import GpuTransfer
from agentfly_lib.ray_calls import abandoned_calls_end, ray_call
from agentfly_lib.refs import EngineRef, LearnerRef, ModelRef
from agentfly_lib.training.ranks import Learner
from agentfly_lib.types import Canary

__all__ = ["EngineKeeper"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Served:
    """What the engines were last proven to serve."""

    version: int
    canary: Canary
    source: WeightSource | None
    """Where they can be loaded from again; None if they came without a file, or the engines had them already."""


class EngineKeeper:
    """Use from one event loop."""

    def __init__(
        self,
        config: RunConfig,
        *,
        model: ModelRef,
        namespace: str,
        trains: bool,
        exchange: Exchange,
        learning: Learning,
        times: StepTimes,
        background: Background,
    ) -> None:
        """Of a run's engines; `trains` says whether there is a learner whose weights they serve."""
        self._config = config
        self._model = model
        self._namespace = namespace
        self._trains = trains
        self._exchange = exchange
        self._learning = learning
        self._times = times
        self._background = background
        self._seconds = config.inference.update_timeout_seconds
        self._lock = asyncio.Lock()
        self._known: set[str] = set()
        self._served: _Served | None = None
        self._clients: WeakSet[RayGenerate] = WeakSet()
        self._incomplete = False
        """An engine was lost since anybody looked."""
        self._replacing = False
        self._rejoining = False
        self._missed: set[str] = set()
        """Engines that clients have lost since all were in their places."""
        self._engines: EngineRef | None = None
        self._placement: Placement | None = None
        self._gpu_transfer: GpuTransfer | None = None
        self.resting = False
        """The engines sleep, or are about to: their memory is the learner's until they `serve` again."""

    async def ask(self) -> EngineRef:
        """The engines, found or started; see `ensure_engines`."""
        async with self._alone():
            return await self._ask()

    async def revived(self) -> EngineRef | None:
        """The engines, dead ones replaced, serving what they were last given; None if that takes the learner."""
        async with self._alone():
            if self.resting:
                return None
            engines = await self._ask()
            try:
                if not await self._bring_up(engines):
                    return None
            except CanaryError as error:
                logger.warning("the learner's weights are sent again: %s", error)
                return None
            await self._rejoin(engines)
            return engines.model_copy(update={"policy_version": self._served.version}) if self._served else engines

    async def client(self, engines: EngineRef) -> RayGenerate:
        """What samples from the engines; it learns of those that are replaced."""
        names = tuple(name for name in engines.names if name not in self._missed) or engines.names
        found = await ray_call(find_engines, names, engines.namespace)
        client = RayGenerate(engines.model_copy(update={"names": names}), on_loss=self._lost, found=found)
        self._clients.add(client)
        return client

    async def serve(self, version: int, engines: EngineRef, learner: LearnerRef) -> EngineRef:
        """The engines serve the version that the learner holds, proven."""
        async with self._alone():
            if await self.takes_turns():
                await ray_call(wake_engines, engines, seconds=self._seconds)
                self.resting = False
            engines = await self._proven(version, engines, learner) or await self._send(version, engines, learner)
            await self._rejoin(engines)
            return engines

    async def rest(self) -> None:
        """Engines that share their GPUs with the learner give the memory back, until they `serve` again."""
        async with self._alone():
            if self._engines is not None and await self.takes_turns():
                self.resting = True
                level = 1 if serves_adapters(self._config) else 2  # weights are sent again, adapters alone not
                await ray_call(sleep_engines, self._engines, level, seconds=self._seconds)

    async def takes_turns(self) -> bool:
        """Engines and learner share GPUs. Ray must be running."""
        return (await self._placed()).sleeps

    async def _placed(self) -> Placement:
        if self._placement is None:
            self._placement = place(self._config, await ray_call(gpu_count), learner=self._trains)
        return self._placement

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Nobody else changes engines, not even for somebody who was cancelled."""
        async with self._lock:
            await abandoned_calls_end()
            yield

    async def _ask(self) -> EngineRef:
        started: list[str] = []
        # A new engine serves no version of what is trained before its adapters, or the present weights, are loaded.
        fresh = -1 if self._trains and (serves_adapters(self._config) or self._learning.version) else 0
        engines = await ray_call(
            ensure_engines,
            self._config,
            self._model,
            namespace=self._namespace,
            policy_version=fresh,
            learner=self._trains,
            on_start=started.append,
        )
        self._engines = engines
        replaced = self._known.intersection(started)
        self._known.update(engines.names)
        self._times.count("engine/replaced/count", len(replaced))
        if replaced:
            logger.warning("replaced: %s", ", ".join(sorted(replaced)))
        return engines

    async def _proven(self, version: int, engines: EngineRef, learner: LearnerRef) -> EngineRef | None:
        """The engines if they serve the version already."""
        if engines.policy_version != version:
            return None
        canary = await Learner(learner, self._config.learner).canary()
        try:
            await self._prove(engines, canary)
        except CanaryError as error:
            logger.warning("the learner's weights are sent again: %s", error)
            return None
        if self._served is None or self._served.version != version:
            self._served = _Served(version, canary, None)
        return engines

    async def _send(self, version: int, engines: EngineRef, ref: LearnerRef) -> EngineRef:
        learner = Learner(ref, self._config.learner)
        self._served = None
        with self._times.syncing():
            if (transfer := await self._transfer()) is not None:
                source, canary = None, await learner.canary()
                engines, found = await transfer.send(engines, learner, version=version, canary=canary)
            else:
                source, canary = await self._export(learner, version)
                engines, found = await self._load(engines, source, version, canary)
        self._served = _Served(version, canary, source)
        self._times.note(
            {
                "sync/canary_difference/mean": found.canary.mean_difference if found.canary else 0.0,
                "sync/canary_difference/max": found.canary.max_difference if found.canary else 0.0,
            }
        )
        return engines

    async def _prove(self, engines: EngineRef, canary: Canary) -> None:
        tolerance = self._config.inference.canary_tolerance
        await ray_call(prove, engines, canary, tolerance=tolerance, seconds=self._seconds)

    async def _load(
        self, engines: EngineRef, source: WeightSource, version: int, canary: Canary
    ) -> tuple[EngineRef, WeightUpdate]:
        return await ray_call(load_weights, engines, source, version=version, canary=canary, seconds=self._seconds)

    async def _export(self, learner: Learner, version: int) -> tuple[WeightSource, Canary]:
        exchange = self._exchange.folder
        if serves_adapters(self._config):
            return AdapterFolder(exchange / "adapter"), await learner.export_adapter(exchange / "adapter", version)
        path = exchange / "policy.safetensors"
        return path, await learner.export(path, version)

    async def _transfer(self) -> GpuTransfer | None:
        kind = (await self._placed()).transfer
        if kind != "file" and self._gpu_transfer is None:
            wide = self._config.inference.tensor_parallel
            self._gpu_transfer = GpuTransfer(kind, tensor_parallel=wide, seconds=self._seconds)
        return self._gpu_transfer

    # What clients tell.

    def _lost(self, loss: EngineLoss) -> None:
        if loss.name not in self._missed:  # several clients may notice
            self._missed.add(loss.name)
            self._times.count("engine/lost/count", 1)
        if self._rejoining:  # it was replaced already, before a client had noticed
            return
        self._incomplete = True
        if self._config.inference.replicas > 1 and not self._replacing:
            self._replacing = True
            self._background.start(self._replace())

    async def _replace(self) -> None:
        """Replaces what is dead, beside what lives, and lets it take part once it is proven."""
        try:
            while self._incomplete:
                async with self._alone():
                    self._incomplete = False
                    if self.resting:  # its memory is the learner's now; the next stage asks for it
                        return
                    engines = await self._ask()
                    if await self._bring_up(engines):
                        await self._rejoin(engines)
        finally:
            self._replacing = False

    async def _bring_up(self, engines: EngineRef) -> bool:
        """Every engine serves what the others were last given; False if that is for the next stage to see to."""
        served = self._served
        if not self._trains:
            return True
        if served is None:
            return False
        for name, status in zip(engines.names, await ray_call(engine_status, engines), strict=True):
            one = engines.model_copy(update={"names": (name,), "policy_version": status.policy_version})
            if status.policy_version == served.version:
                await self._prove(one, served.canary)
            elif served.source is not None:
                await self._load(one, served.source, served.version, served.canary)
            else:
                return False
        return True

    async def _rejoin(self, engines: EngineRef) -> None:
        found = await ray_call(find_engines, engines.names, engines.namespace)
        self._rejoining = True
        try:
            for client in self._clients:
                for name in engines.names:
                    with suppress(EngineError):  # it died this moment, of which the client hears by itself
                        client.join(name, found[name])
        finally:
            self._rejoining = False
        self._missed.clear()
