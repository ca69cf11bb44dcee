"""One client's line to one engine's Ray actor: requests go out together, a long poll brings back what is ready.

The poll is the sign of life as well. It ends within `POLL_SECONDS` whether there is anything or not, so that an engine
from which nothing comes for `SILENT_SECONDS` more is silent: it may be a stalled machine, and it may come back, but
nobody should wait for it alone. What Ray says of a process that has ended arrives at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol
from uuid import uuid4

from agentfly_lib.errors import EngineError, InfrastructureError, first_line
from agentfly_lib.inference.server import PackedRequest, Reply

__all__ = ["GONE_SECONDS", "POLL_SECONDS", "SILENT_SECONDS", "EngineLink", "Listener"]

POLL_SECONDS = 3.0
"""Longest wait of one long poll."""
SILENT_SECONDS = 6.0
"""An engine that is so late with the answer to a poll is silent: nine seconds after its last sign of life."""
_SECOND_LOOK_SECONDS = 0.2
"""Where it was this process that stalled, the answer is here already, and seen by then."""
GONE_SECONDS = 40.0
"""An engine that was silent for so long is gone."""


class Listener(Protocol):
    """Who is told what comes over a link."""

    def on_reply(self, name: str, reply: Reply) -> None:
        """A request's answer, or new tokens of one."""

    def on_silent(self, name: str) -> None:
        """Nothing comes from the engine any more; what it owes may still come."""

    def on_back(self, name: str) -> None:
        """An engine that was silent answered."""

    def on_refused(self, name: str, keys: list[int], error: InfrastructureError) -> None:
        """The engine could not be asked: these requests will have no answer from it, others may."""

    def on_gone(self, name: str, error: EngineError) -> None:
        """The engine is dead: nothing will come any more. The link is of no use from here on."""


class EngineLink:
    """Use from one event loop at a time. Nothing needs closing: while nothing is owed, nothing runs."""

    def __init__(self, name: str, actor: Any, listener: Listener) -> None:
        self.name = name
        self.actor = actor
        """Ray's handle of the engine."""
        self.owed: set[int] = set()
        """Keys of the requests that the engine has not answered."""
        self.silent = False
        self._listener = listener
        self._client = uuid4().hex
        self._outbox: list[tuple[int, PackedRequest, bool]] = []
        self._given_up: list[int] = []
        self._handing_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._ended = False

    def ask(self, key: int, request: PackedRequest, *, streamed: bool) -> None:
        """Hand a request over, under a key of the caller's; with `streamed` its tokens come while they are sampled."""
        loop = asyncio.get_running_loop()
        self.owed.add(key)
        self._hand_over_soon(loop)
        self._outbox.append((key, request, streamed))
        if self._listening is None or self._listening.done():
            self._listening = loop.create_task(self._listen())

    def give_up(self, key: int) -> None:
        """Nobody waits for this request any more: the engine may stop."""
        if key in self.owed:
            self.owed.discard(key)
            self._hand_over_soon(asyncio.get_running_loop())
            self._given_up.append(key)

    def _hand_over_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._handing_over:
            self._handing_over = True
            loop.call_soon(self._hand_over, loop)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handing_over = False
        requests, self._outbox = self._outbox, []
        given_up, self._given_up = self._given_up, []
        task = loop.create_task(self._submit(requests, given_up))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, requests: list[tuple[int, PackedRequest, bool]], given_up: list[int]) -> None:
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await self.actor.submit.remote(self._client, requests, given_up)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the requests were not taken
            self._given_up += given_up  # told with whatever goes to the engine next
            self._failed(error, [key for key, _, _ in requests])

    async def _listen(self) -> None:
        while self.owed and not self._ended:
            poll = asyncio.ensure_future(_answer(self.actor.collect.remote(self._client, POLL_SECONDS)))
            try:
                await asyncio.wait({poll}, timeout=POLL_SECONDS + SILENT_SECONDS)
                await asyncio.wait({poll}, timeout=_SECOND_LOOK_SECONDS)
                if not poll.done():
                    self.silent = True
                    self._listener.on_silent(self.name)
                    await asyncio.wait({poll}, timeout=GONE_SECONDS - SILENT_SECONDS)
                if not poll.done():
                    self._failed(TimeoutError(), self.owed)
                    return
            finally:
                poll.cancel()
            if self._ended:
                if poll.done() and not poll.cancelled():
                    poll.exception()  # nobody else will look at it
                return
            if self.silent:
                self.silent = False
                self._listener.on_back(self.name)
            if (error := poll.exception()) is not None:
                self._failed(error, self.owed)
                continue
            for reply in poll.result():
                if reply[1] != "tokens":
                    self.owed.discard(reply[0])
                self._listener.on_reply(self.name, reply)

    def end(self) -> None:
        """Nothing is told of this engine any more: another has taken its name."""
        self._ended = True
        self.owed.clear()

    def _failed(self, error: BaseException, keys: Iterable[int]) -> None:
        from ray.exceptions import ActorUnavailableError, RayActorError

        keys = [key for key in keys if key in self.owed]
        if isinstance(error, TimeoutError):
            gone = EngineError(f"engine {self.name!r} is gone: no answer within {GONE_SECONDS:g} s")
        elif isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError):
            gone = EngineError(f"engine {self.name!r} is gone: {type(error).__name__}: {first_line(error)}")
        else:
            refused = InfrastructureError(
                f"engine {self.name!r} could not be asked: {type(error).__name__}: {first_line(error)}",
                where="generate",
            )
            refused.__cause__ = error
            for key in keys:  # it may have them all the same, and would sample them to their ends
                self.give_up(key)
            self._listener.on_refused(self.name, keys, refused)
            return
        gone.__cause__ = error
        if not self._ended:
            self._ended = True
            self._listener.on_gone(self.name, gone)


async def _answer(ref: Any) -> Any:
    return await ref
