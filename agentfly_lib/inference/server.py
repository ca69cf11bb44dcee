"""What lives in an engine's Ray actor: one `VllmEngine`, and a mailbox for each client.

A Ray call costs about a millisecond of processor time, as much as some turns of a small model. So a client hands over
all requests of one turn of its event loop in one call (`submit`), and a long poll (`collect`) brings back whatever has
finished since. Failures travel as data: `(key, kind, message)`.

Tokens of requests that are streamed come back with the same poll, those of all requests together and no more often than
every `_DELTA_SECONDS`, so that streaming costs a fixed number of calls per second, however much is sampled. An answer
waits for none of that.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from agentfly_lib.configs.inference import SamplingConfig
from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference.generate import Generation, GenerationRequest
from agentfly_lib.inference.rest import SleepLevel
from agentfly_lib.inference.settings import EngineSettings, engine_environment
from agentfly_lib.inference.source import WeightSource
from agentfly_lib.inference.vllm import VllmEngine
from agentfly_lib.inference.weight_update import WeightUpdate
from agentfly_lib.orphan import OrphanTimer
from agentfly_lib.types import Canary, FinishReason

__all__ = ["EngineServer", "EngineStatus", "PackedRequest", "Reply", "pack_request", "unpack_reply"]

_FORGET_CLIENT_SECONDS = 1800.0
"""A client that has neither asked nor collected for so long is gone."""

_DELTA_SECONDS = 0.02
"""Tokens of requests that are streamed are sent no more often."""

PackedRequest = tuple[
    str, tuple[int, ...], int, dict[str, Any], int | None, tuple[int, ...], bool, tuple[bytes, ...], int
]
PackedGeneration = tuple[list[int], list[float], str, int, int, float, list[int]]
Reply = (
    tuple[int, Literal["generation"], PackedGeneration]
    | tuple[int, Literal["tokens"], list[int]]
    | tuple[int, Literal["engine", "infrastructure", "value", "program"], str]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """How an engine is."""

    digest: str
    """Of the settings it was started with."""
    policy_version: int
    in_flight: int
    sampled_tokens: int
    """Of all answers since it was started."""
    pid: int
    rss_mib: float
    cpu_seconds: float


@dataclass(slots=True)
class _Mailbox:
    """Requests and replies of one client."""

    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """New tokens of requests that are streamed and go on."""
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is anything."""
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is a reply."""
    seen: float = 0.0
    tokens_sent: float = 0.0
    """When tokens were sent last."""

    def told(self, key: int, token_ids: Sequence[int]) -> None:
        """Takes new tokens of a request."""
        self.tokens.setdefault(key, []).extend(token_ids)
        self.stirred.set()

    def answered(self, reply: Reply) -> None:
        """Takes a request's end; tokens that were not sent yet go before it."""
        self.replies += self._told(reply[0])
        self.replies.append(reply)
        self.filled.set()
        self.stirred.set()

    async def wait(self) -> None:
        """Until there is a reply, or tokens that may be sent."""
        await self.stirred.wait()
        pause = self.tokens_sent + _DELTA_SECONDS - time.monotonic()
        if pause > 0 and not self.filled.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.filled.wait()

    def emptied(self) -> list[Reply]:
        """Everything there is, which is then gone from here."""
        replies, self.replies = self.replies, []
        if self.tokens:
            replies += [told for key in list(self.tokens) for told in self._told(key)]
            self.tokens_sent = time.monotonic()
        self.stirred.clear()
        self.filled.clear()
        return replies

    def _told(self, key: int) -> list[Reply]:
        token_ids = self.tokens.pop(key, None)
        return [(key, "tokens", token_ids)] if token_ids else []


class EngineServer:
    """Becomes a Ray actor by `ray.remote`; all its methods run on the actor's event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        os.environ.update(engine_environment(settings))  # this process is the engine's alone
        self._digest = settings.digest
        self._engine = VllmEngine(settings)
        self._starting: asyncio.Task[None] | None = None
        self._mailboxes: dict[str, _Mailbox] = {}
        self._sampled_tokens = 0
        self._orphan = OrphanTimer("this engine")

    async def start(self) -> None:
        """Start the engine, or wait for a start under way. Raises `EngineError` if it cannot start."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._engine.start())
        await asyncio.shield(self._starting)

    async def ping(self) -> EngineStatus:
        """Answers at once, also while the engine starts. Raises `EngineError` if the engine is dead."""
        import psutil

        self._orphan.touch()
        if self._engine.error is not None:
            raise EngineError(str(self._engine.error))
        process = psutil.Process()
        times = process.cpu_times()
        return EngineStatus(
            digest=self._digest,
            policy_version=self._engine.policy_version,
            in_flight=self._engine.in_flight,
            sampled_tokens=self._sampled_tokens,
            pid=os.getpid(),
            rss_mib=process.memory_info().rss / 2**20,
            cpu_seconds=times.user + times.system,
        )

    async def submit(
        self, client: str, requests: Sequence[tuple[int, PackedRequest, bool]], given_up: Sequence[int]
    ) -> None:
        """Begin `requests`, each under the client's key, and abort those whose key is in `given_up`.

        The third of a request says whether its tokens are sent while they are sampled.
        """
        self._forget_lost_clients()
        mailbox = self._mailbox(client)
        for key, packed, streamed in requests:
            mailbox.tasks[key] = asyncio.ensure_future(self._answer(mailbox, key, packed, streamed))
        for key in given_up:
            mailbox.tokens.pop(key, None)
            if task := mailbox.tasks.pop(key, None):
                task.cancel()

    async def collect(self, client: str, wait_seconds: float) -> list[Reply]:
        """Replies and tokens that are ready, as soon as there are any; none if there are none in `wait_seconds`."""
        mailbox = self._mailbox(client)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await mailbox.wait()
        return mailbox.emptied()

    async def load_weights(self, source: WeightSource, version: int, canary: Canary | None) -> WeightUpdate:
        """See `VllmEngine.load_weights`."""
        with self._orphan.call():
            return await self._engine.load_weights(source, version, canary)

    async def open_transfer(self, init_info: Mapping[str, Any]) -> None:
        """See `VllmEngine.open_transfer`."""
        with self._orphan.call():
            await self._engine.open_transfer(init_info)

    async def sleep(self, level: SleepLevel) -> bool:
        """See `VllmEngine.sleep`."""
        with self._orphan.call():
            return await self._engine.sleep(level)

    async def wake(self) -> bool:
        """See `VllmEngine.wake`."""
        with self._orphan.call():
            return await self._engine.wake()

    async def logprobs(self, token_ids: Sequence[int], images: Sequence[bytes] = ()) -> list[float]:
        """See `VllmEngine.logprobs`."""
        with self._orphan.call():
            return await self._engine.logprobs(token_ids, images)

    async def close(self) -> None:
        """End the engine; the actor stays and refuses."""
        await self._engine.close()

    def _mailbox(self, client: str) -> _Mailbox:
        mailbox = self._mailboxes.setdefault(client, _Mailbox())
        mailbox.seen = time.monotonic()
        self._orphan.touch()
        return mailbox

    def _forget_lost_clients(self) -> None:
        limit = time.monotonic() - _FORGET_CLIENT_SECONDS
        for client in [client for client, mailbox in self._mailboxes.items() if mailbox.seen < limit]:
            for task in self._mailboxes.pop(client).tasks.values():
                task.cancel()

    async def _answer(self, mailbox: _Mailbox, key: int, packed: PackedRequest, streamed: bool) -> None:
        reply: Reply

        def tell(delta: Any) -> None:
            mailbox.told(key, delta)

        try:
            request = _unpack_request(packed)
            answer = self._engine.generate_stream(request, tell) if streamed else self._engine.generate(request)
            generation = await answer
            self._sampled_tokens += len(generation.token_ids)
            reply = (key, "generation", _pack_generation(generation))
        except EngineError as error:
            reply = (key, "engine", str(error))
        except InfrastructureError as error:
            reply = (key, "infrastructure", str(error))
        except ValueError as error:
            reply = (key, "value", str(error))
        except Exception as error:  # noqa: BLE001 - it is raised again where the request was made
            reply = (key, "program", f"{type(error).__name__}: {error}")
        mailbox.tasks.pop(key, None)
        mailbox.answered(reply)


def pack_request(request: GenerationRequest) -> PackedRequest:
    """Plain values, which pickle fast and need none of our classes."""
    sampling = request.sampling
    return (
        request.request_id,
        tuple(request.token_ids),
        request.max_tokens,
        {name: getattr(sampling, name) for name in sampling.model_fields_set},
        request.seed,
        request.stop_token_ids,
        request.greedy,
        tuple(request.images),
        request.priority,
    )


def _unpack_request(packed: PackedRequest) -> GenerationRequest:
    request_id, token_ids, max_tokens, sampling, seed, stop_token_ids, greedy, images, priority = packed
    return GenerationRequest(
        request_id=request_id,
        token_ids=token_ids,
        max_tokens=max_tokens,
        sampling=SamplingConfig.model_construct(**sampling),  # checked where the request was made
        seed=seed,
        stop_token_ids=stop_token_ids,
        greedy=greedy,
        images=images,
        priority=priority,
    )


def _pack_generation(generation: Generation) -> PackedGeneration:
    return (
        generation.token_ids,
        generation.logprobs,
        generation.finish.value,
        generation.policy_version,
        generation.cached_tokens,
        generation.seconds,
        list(generation.versions),
    )


def unpack_reply(reply: Reply) -> Generation | list[int] | Exception:
    """What was generated, new tokens of what goes on, or the exception to raise for it."""
    if reply[1] == "tokens":
        return reply[2]
    if reply[1] == "generation":
        token_ids, logprobs, finish, policy_version, cached_tokens, seconds, versions = reply[2]
        return Generation(
            token_ids=token_ids,
            logprobs=logprobs,
            finish=FinishReason(finish),
            policy_version=policy_version,
            cached_tokens=cached_tokens,
            seconds=seconds,
            versions=versions,
        )
    if reply[1] == "engine":
        return EngineError(reply[2])
    if reply[1] == "infrastructure":
        return InfrastructureError(reply[2], where="generate")
    if reply[1] == "value":
        return ValueError(reply[2])
    # A fault of this request's: the engine goes on, and another engine would fail with it in the same way.
    return InfrastructureError(f"the engine failed at this request: {reply[2]}", where="generate")
