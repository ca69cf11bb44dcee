"""The engines of a session: asked, replaced when they die, given weights, and lent to whoever collects.

An engine that is lost while others go on is replaced beside them: it is given the weights that they serve, and proven
by the same canary, before it gets a request. If that cannot be done, the next stage does it. What changes engines runs
under one lock, so that none is given two sets of weights at once.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from agentfly_lib.errors import CanaryError, EngineError
from agentfly_lib.inference.actor import engine_status, ensure_engines, load_weights, prove
from agentfly_lib.inference.canary import Canary
from agentfly_lib.inference.client import EngineLoss, RayGenerate
from agentfly_lib.refs import EngineRef, LearnerRef, ModelRef
from agentfly_lib.training.ranks import Learner

if TYPE_CHECKING:
    from tasks.session import Session

__all__ = ["EngineKeeper"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Served:
    """What the engines were last proven to serve."""

    version: int
    canary: Canary
    path: Path | None
    """The file of these weights; None if the engines had them already."""


class EngineKeeper:
    """Use from the session's event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self._known: set[str] = set()
        self._served: _Served | None = None
        self._clients: WeakSet[RayGenerate] = WeakSet()
        self._replacing = False

    async def ask(self, model: ModelRef) -> EngineRef:
        """The engines, found or started; see `ensure_engines`."""
        async with self._lock:
            return await self._ask(model)

    async def revived(self, model: ModelRef) -> EngineRef | None:
        """The engines, dead ones replaced, serving what they were last given; None if nobody has kept that."""
        async with self._lock:
            engines = await self._ask(model)
            try:
                if not await self._bring_up(engines):
                    return None
            except CanaryError as error:
                logger.warning("the learner's weights are sent again: %s", error)
                return None
            self._rejoin(engines)
            return engines.model_copy(update={"policy_version": self._served.version}) if self._served else engines

    def client(self, engines: EngineRef) -> RayGenerate:
        """What samples from the engines; it learns of those that are replaced."""
        client = RayGenerate(engines, on_loss=self._lost)
        self._clients.add(client)
        return client

    async def serve(self, version: int, engines: EngineRef, learner: LearnerRef) -> EngineRef:
        """The engines serve the version that the learner holds, proven."""
        async with self._lock:
            engines = await self._proven(version, engines, learner) or await self._send(version, engines, learner)
            self._rejoin(engines)
            return engines

    async def _ask(self, model: ModelRef) -> EngineRef:
        started: list[str] = []
        engines = await asyncio.to_thread(
            ensure_engines, self._session.config, model, namespace=self._session.namespace, on_start=started.append
        )
        replaced = self._known.intersection(started)
        self._known.update(engines.names)
        self._session.times.count("engine/replaced/count", len(replaced))
        if replaced:
            logger.warning("replaced: %s", ", ".join(sorted(replaced)))
        return engines

    async def _proven(self, version: int, engines: EngineRef, learner: LearnerRef) -> EngineRef | None:
        """The engines if they serve the version already."""
        if engines.policy_version != version:
            return None
        proof = await Learner(learner, self._session.config.learner).canary()
        canary = Canary(token_ids=tuple(proof.token_ids), logprobs=tuple(proof.logprobs))
        try:
            tolerance = self._session.config.inference.canary_tolerance
            await asyncio.to_thread(prove, engines, canary, tolerance=tolerance)
        except CanaryError as error:
            logger.warning("the learner's weights are sent again: %s", error)
            return None
        if self._served is None or self._served.version != version:
            self._served = _Served(version, canary, None)
        return engines

    async def _send(self, version: int, engines: EngineRef, ref: LearnerRef) -> EngineRef:
        session, learner = self._session, Learner(ref, self._session.config.learner)
        path = session.exchange / "policy.safetensors"
        self._served = None
        with session.times.syncing():
            proof = await learner.export(path, version)
            canary = Canary(token_ids=tuple(proof.token_ids), logprobs=tuple(proof.logprobs))
            engines, found = await asyncio.to_thread(load_weights, engines, path, version=version, canary=canary)
        self._served = _Served(version, canary, path)
        session.times.note(
            {
                "sync/canary_difference/mean": found.canary.mean_difference if found.canary else 0.0,
                "sync/canary_difference/max": found.canary.max_difference if found.canary else 0.0,
            }
        )
        return engines

    # What clients tell.

    def _lost(self, loss: EngineLoss) -> None:
        self._session.times.count("engine/lost/count", 1)
        if self._session.config.inference.replicas > 1 and not self._replacing:
            self._replacing = True
            self._session.in_background(self._replace())

    async def _replace(self) -> None:
        """Replaces what is dead, beside what lives, and lets it take part once it is proven."""
        try:
            async with self._lock:
                engines = await self._ask(self._session.resolved_model)
                if await self._bring_up(engines):
                    self._rejoin(engines)
        finally:
            self._replacing = False

    async def _bring_up(self, engines: EngineRef) -> bool:
        """Every engine serves what the others were last given; False if that is for the next stage to see to."""
        served = self._served
        if not self._session.trains:
            return True
        if served is None:
            return False
        for name, status in zip(engines.names, await asyncio.to_thread(engine_status, engines), strict=True):
            one = engines.model_copy(update={"names": (name,), "policy_version": status.policy_version})
            if status.policy_version == served.version:
                tolerance = self._session.config.inference.canary_tolerance
                await asyncio.to_thread(prove, one, served.canary, tolerance=tolerance)
            elif served.path is not None:
                await asyncio.to_thread(load_weights, one, served.path, version=served.version, canary=served.canary)
            else:
                return False
        return True

    def _rejoin(self, engines: EngineRef) -> None:
        for client in self._clients:
            for name in engines.names:
                with suppress(EngineError):  # it died this moment, of which the client hears by itself
                    client.join(name)
