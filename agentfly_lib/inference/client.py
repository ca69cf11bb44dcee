"""`RayGenerate`: one `GenerateStream` over all engines of a run, which outlives those of them that die.

A request is token ids and a seed, nothing of it lives in an engine. So what a dead engine owed is asked of another, and
what a silent one owes is asked of another too: the first answer counts, the rest is dropped. Only when no engine is
left is a request an `EngineError`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference.balancer import PrefixBalancer
from agentfly_lib.inference.generate import Delta, Generation, GenerationRequest
from agentfly_lib.inference.link import EngineLink
from agentfly_lib.inference.server import PackedRequest, Reply, pack_request, unpack_reply
from agentfly_lib.ray_calls import living_actor
from agentfly_lib.refs import EngineRef

__all__ = ["EngineLoss", "FoundEngine", "RayGenerate", "find_engine", "find_engines"]

logger = logging.getLogger(__name__)

FoundEngine = Any | EngineError
"""Ray's handle of an engine, which has no type of its own, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoss:
    """An engine that a client could no longer use."""

    name: str
    reason: str
    noticed: float
    """Seconds since the epoch."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request whose answer is awaited."""

    future: asyncio.Future[Generation]
    token_ids: Sequence[int]
    packed: PackedRequest
    on_delta: Callable[[Delta], None] | None
    asked: set[str] = field(default_factory=set)
    """Engines that may still answer."""
    failed: set[str] = field(default_factory=set)
    """Engines that will not."""
    told: list[int] = field(default_factory=list)
    """Tokens that the caller has been told of."""
    heard: dict[str, int] = field(default_factory=dict)
    """How many tokens each engine has sent."""


class RayGenerate:
    """A `GenerateStream` that samples from the engines of a run, each in its Ray actor.

    Use from one event loop at a time. Nothing needs closing: while no request waits, nothing runs.
    """

    def __init__(
        self,
        ref: EngineRef,
        *,
        on_loss: Callable[[EngineLoss], None] | None = None,
        found: Mapping[str, FoundEngine] | None = None,
    ) -> None:
        """Find the engines of `ref`; raises `EngineError` if there is none.

        on_loss: told of each engine that is lost, in the event loop.
        found: what `find_engines` found, for a caller that must not block.
        """
        self.losses: list[EngineLoss] = []
        """Engines that were lost, in order."""
        self.resent = 0
        """Requests that were asked of another engine, because the first was lost or silent."""
        self._namespace = ref.namespace
        self._on_loss = on_loss
        self._balancer = PrefixBalancer()
        self._links: dict[str, EngineLink] = {}
        self._keys = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._last_error: EngineError | None = None
        for name in ref.names:
            try:
                self.join(name, found[name] if found else None)
            except EngineError as error:
                self._note_loss(name, error)
        if self._last_error is not None and not self._links:
            raise self._last_error

    @property
    def names(self) -> tuple[str, ...]:
        """Engines that get requests now."""
        return self._balancer.names

    def join(self, name: str, found: FoundEngine | None = None) -> None:
        """An engine gets requests (again): one that was replaced, or proven after an update that had failed.

        found: what `find_engines` found of it, for a caller that must not block.

        Raises `EngineError` if there is none of this name.
        """
        actor = find_engine(name, self._namespace) if found is None else found
        if isinstance(actor, EngineError):
            raise actor
        link = self._links.get(name)
        if link is not None and link.actor != actor:
            self.on_gone(name, EngineError(f"engine {name!r} was replaced"))
            link = None
        if link is None:
            self._links[name] = EngineLink(name, actor, self)
        for waiting in self._waiting.values():
            waiting.failed.discard(name)
        if not self._links[name].silent:
            self._let_in(name)

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`."""
        return await self._answer(request, None)

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """See `GenerateStream.generate_stream`."""
        return await self._answer(request, on_delta)

    async def _answer(self, request: GenerationRequest, on_delta: Callable[[Delta], None] | None) -> Generation:
        key = next(self._keys)
        waiting = _Waiting(
            future=asyncio.get_running_loop().create_future(),
            token_ids=request.token_ids,
            packed=pack_request(request),
            on_delta=on_delta,
        )
        if not self._send(key, waiting):
            raise EngineError(str(self._last_error)) from self._last_error
        self._waiting[key] = waiting
        try:
            return await waiting.future
        finally:
            self._forget(key)

    def _send(self, key: int, waiting: _Waiting) -> bool:
        """Ask an engine that was not asked yet; False if there is none."""
        name = self._balancer.choose(waiting.token_ids, avoid=waiting.asked | waiting.failed)
        if name is None:
            return False
        waiting.asked.add(name)
        self._links[name].ask(key, waiting.packed, streamed=waiting.on_delta is not None)
        return True

    def _forget(self, key: int) -> None:
        """The request has its outcome, or was given up: whoever still works on it may stop."""
        if (waiting := self._waiting.pop(key, None)) is None:
            return
        for name in waiting.asked:
            self._balancer.done(name)
            if link := self._links.get(name):
                link.give_up(key)

    # What the links tell.

    def on_reply(self, name: str, reply: Reply) -> None:
        """See `Listener`."""
        key = reply[0]
        waiting = self._waiting.get(key)
        if waiting is None or name not in waiting.asked or waiting.future.done():
            return
        match unpack_reply(reply):
            case list() as token_ids:
                self._hear(name, key, waiting, token_ids)
            case EngineError() as error:  # it serves nobody until it is proven or replaced
                self._rest(name, str(error))
                self._pass_on(name, key, waiting, error)
            case Exception() as error:
                waiting.future.set_exception(error)
            case generation if waiting.told and generation.token_ids[: len(waiting.told)] != waiting.told:
                self._pass_on(name, key, waiting, _otherwise(name))
            case generation:
                waiting.future.set_result(generation)

    def on_silent(self, name: str) -> None:
        """See `Listener`."""
        logger.warning("engine %r is silent%s", name, "" if len(self.names) < 2 else "; others are asked instead")
        if not self._rest(name, "it is silent"):
            return
        for key in list(self._links[name].owed):
            waiting = self._waiting.get(key)
            if waiting is not None and len(waiting.asked) == 1 and self._send(key, waiting):
                self.resent += 1

    def on_back(self, name: str) -> None:
        """See `Listener`."""
        logger.warning("engine %r, which was silent, answers again", name)
        self._let_in(name)

    def on_refused(self, name: str, keys: list[int], error: InfrastructureError) -> None:
        """See `Listener`."""
        for key in keys:
            if waiting := self._waiting.get(key):
                self._pass_on(name, key, waiting, error)

    def on_gone(self, name: str, error: EngineError) -> None:
        """See `Listener`."""
        link = self._links.pop(name, None)
        if link is None:
            return
        self._balancer.leave(name)
        if not self._balancer.names:  # those that were silent are all that is left
            for each in self._links:
                self._let_in(each)
        self._note_loss(name, error)
        owed = list(link.owed)
        link.end()
        for key in owed:
            if waiting := self._waiting.get(key):
                self._pass_on(name, key, waiting, error)

    def _pass_on(self, name: str, key: int, waiting: _Waiting, error: Exception) -> None:
        """No answer will come from this engine: another is asked, unless one is already, or none is left."""
        if waiting.future.done():
            return
        waiting.asked.discard(name)
        waiting.failed.add(name)
        self._balancer.done(name)
        if waiting.asked:
            return
        if self._send(key, waiting):
            self.resent += 1
        else:
            waiting.future.set_exception(error)

    def _rest(self, name: str, reason: str) -> bool:
        """The engine gets nothing new while there are others; whether there are."""
        if name not in self._balancer.names or len(self._balancer.names) < 2:
            return False
        self._balancer.leave(name)
        self._tell_loss(EngineLoss(name=name, reason=reason, noticed=time.time()))
        return True

    def _let_in(self, name: str) -> None:
        self._balancer.join(name, load=len(self._links[name].owed))

    def _note_loss(self, name: str, error: EngineError) -> None:
        self._last_error = error
        logger.warning("%s; %d of its kind go on", error, len(self._links))
        self._tell_loss(EngineLoss(name=name, reason=str(error), noticed=time.time()))

    def _tell_loss(self, loss: EngineLoss) -> None:
        self.losses.append(loss)
        if self._on_loss is not None:
            self._on_loss(loss)

    def _hear(self, name: str, key: int, waiting: _Waiting, token_ids: list[int]) -> None:
        """New tokens of a request; what another engine had told already is not told twice."""
        if waiting.on_delta is None:
            return
        begin = waiting.heard.get(name, 0)
        known = waiting.told[begin : begin + len(token_ids)]
        if token_ids[: len(known)] != known:
            link = self._links.get(name)
            if link is not None:
                link.give_up(key)
            self._pass_on(name, key, waiting, _otherwise(name))
            return
        waiting.heard[name] = begin + len(token_ids)
        if fresh := token_ids[len(known) :]:
            waiting.told += fresh
            try:
                waiting.on_delta(fresh)
            except Exception as error:  # noqa: BLE001 - it is the caller's own, and raised there
                waiting.future.set_exception(error)


def find_engine(name: str, namespace: str) -> Any:
    """Ray's handle of an engine. Raises `EngineError` if there is none of this name. Blocks."""
    if (found := living_actor(name, namespace)) is None:
        raise EngineError(f"there is no engine {name!r} in namespace {namespace!r}; ensure_engines starts it")
    return found


def find_engines(names: Sequence[str], namespace: str) -> dict[str, FoundEngine]:
    """Of each name Ray's handle of the engine, or why there is none. Blocks."""
    found: dict[str, FoundEngine] = {}
    for name in names:
        try:
            found[name] = find_engine(name, namespace)
        except EngineError as error:
            found[name] = error
    return found


def _otherwise(name: str) -> InfrastructureError:
    return InfrastructureError(
        f"the engine that had begun to answer was lost, and {name!r} sampled other tokens than those already told",
        where="generate",
    )
