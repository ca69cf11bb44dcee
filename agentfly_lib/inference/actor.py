"""Engines as named Ray actors: `ensure_engines` makes or finds them, `RayGenerate` samples from them.

A name and a namespace are all that one must know of an engine (`EngineRef`). Its death shows at once: the client's one
outstanding call fails, and with it every request that waits, as `EngineError`, because no other request will fare
better.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentfly_lib.configs.run import RunConfig
from agentfly_lib.errors import EngineError, InfrastructureError, ModelError
from agentfly_lib.inference.canary import Canary, judge_reading
from agentfly_lib.inference.generate import Delta, Generation, GenerationRequest
from agentfly_lib.inference.server import (
    EngineServer,
    EngineStatus,
    PackedRequest,
    Reply,
    pack_request,
    unpack_reply,
)
from agentfly_lib.inference.settings import EngineSettings, resolve_device
from agentfly_lib.inference.weight_update import WeightUpdate
from agentfly_lib.refs import EngineRef, ModelRef

__all__ = [
    "RayGenerate",
    "engine_logprobs",
    "engine_status",
    "ensure_engines",
    "load_weights",
    "prove",
    "stop_engines",
    "weights_of",
]

logger = logging.getLogger(__name__)

_CALL_SECONDS = 30.0
"""An actor that does not answer a plain call within this time is taken for dead."""
_POLL_SECONDS = 10.0
"""Longest wait of one long poll; a client that waits collects at least this often."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request whose answer is awaited."""

    future: asyncio.Future[Generation]
    on_delta: Callable[[Delta], None] | None


class RayGenerate:
    """A `GenerateStream` that samples from an engine in a Ray actor.

    Use from one event loop at a time. Nothing needs closing: while no request waits, nothing runs.
    """

    def __init__(self, ref: EngineRef) -> None:
        """Find the engine of `ref`; raises `EngineError` if there is none."""
        self._name = ref.names[0]
        self._actor = _find(self._name, ref.namespace)
        self._client = uuid4().hex
        self._keys = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._outbox: list[tuple[int, PackedRequest, bool]] = []
        self._given_up: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._collecting: asyncio.Task[None] | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`."""
        return await self._answer(request, None)

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """See `GenerateStream.generate_stream`."""
        return await self._answer(request, on_delta)

    async def _answer(self, request: GenerationRequest, on_delta: Callable[[Delta], None] | None) -> Generation:
        loop, key = asyncio.get_running_loop(), next(self._keys)
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting[key] = _Waiting(future, on_delta)
        self._post(loop, request=(key, pack_request(request), on_delta is not None))
        if self._collecting is None or self._collecting.done():
            self._collecting = loop.create_task(self._collect())
        try:
            return await future
        finally:
            if self._waiting.pop(key, None) is not None:  # given up, not answered
                self._post(loop, given_up=key)

    def _post(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        request: tuple[int, PackedRequest, bool] | None = None,
        given_up: int | None = None,
    ) -> None:
        if not self._outbox and not self._given_up:
            loop.call_soon(self._hand_over, loop)
        if request is not None:
            self._outbox.append(request)
        if given_up is not None:
            self._given_up.append(given_up)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        requests, self._outbox = self._outbox, []
        given_up, self._given_up = self._given_up, []
        task = loop.create_task(self._submit(requests, given_up))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, requests: list[tuple[int, PackedRequest, bool]], given_up: list[int]) -> None:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._actor.submit.remote(self._client, requests, given_up)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the requests were not taken
            self._fail([key for key, _, _ in requests], error)

    async def _collect(self) -> None:
        while self._waiting:
            try:
                async with asyncio.timeout(_POLL_SECONDS + _CALL_SECONDS):
                    replies = await self._actor.collect.remote(self._client, _POLL_SECONDS)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, no reply will come
                self._fail(list(self._waiting), error)
                return
            for reply in replies:
                self._take(reply)

    def _take(self, reply: Reply) -> None:
        waiting = self._waiting.get(reply[0])
        if waiting is None or waiting.future.done():
            return
        match unpack_reply(reply):
            case list() as token_ids:
                self._tell(waiting, token_ids)
            case Exception() as error:
                del self._waiting[reply[0]]
                waiting.future.set_exception(error)
            case generation:
                del self._waiting[reply[0]]
                waiting.future.set_result(generation)

    def _tell(self, waiting: _Waiting, token_ids: list[int]) -> None:
        if waiting.on_delta is None:
            return
        try:
            waiting.on_delta(token_ids)
        except Exception as error:  # noqa: BLE001 - it is the caller's own, and raised there
            waiting.future.set_exception(error)

    def _fail(self, keys: list[int], error: Exception) -> None:
        for key in keys:
            waiting = self._waiting.pop(key, None)
            if waiting is not None and not waiting.future.done():
                failure = _request_failure(self._name, error)
                failure.__cause__ = error
                waiting.future.set_exception(failure)


def ensure_engines(config: RunConfig, model: ModelRef, *, namespace: str, policy_version: int = 0) -> EngineRef:
    """Find the run's engines, or start them with the weights of `model`, which are version `policy_version`.

    Idempotent. An engine that is found and answers is kept with whatever version it serves (the returned ref says
    which, `prove` proves it); one that is dead, silent, or was started with other settings or from another model is
    replaced. Ray must be running. Blocks.

    Raises:
        ModelError: the directory of `model` holds no config or no safetensors weights.
        EngineError: an engine cannot start; the message holds the reason.
        ConfigError: a GPU is asked for and there is none.
    """
    from agentfly_lib.cluster import gpu_count

    for pattern in ("config.json", "*.safetensors"):
        if not any(model.path.glob(pattern)):
            raise ModelError(f"{model.path} cannot be served: it holds no {pattern}")
    settings = EngineSettings(
        inference=config.inference,
        model_path=model.path,
        context_length=config.rollout.context_length,
        device=resolve_device(config.inference.device, gpu_count()),
        model_fingerprint=model.fingerprint,
        policy_version=policy_version,
    )
    name = "engine-0"
    if _status_of_living(name, namespace, settings.digest) is None:
        _remove(name, namespace)
        _create(name, namespace, settings)
    try:
        _call(name, namespace, "start", seconds=settings.inference.start_timeout_seconds)
    except EngineError:
        _remove(name, namespace)
        raise
    return EngineRef(names=(name,), namespace=namespace, policy_version=_ping(name, namespace).policy_version)


def load_weights(
    ref: EngineRef, path: Path, *, version: int, canary: Canary | None, seconds: float = 600.0
) -> tuple[EngineRef, WeightUpdate]:
    """Let every engine serve the safetensors file at `path` as `version`, proven by `canary`. Blocks.

    Raises:
        EngineError: an engine is dead, did not answer within `seconds`, or cannot load the file.
        CanaryError: an engine does not serve the learner's weights.
    """
    updates = [
        _call(name, ref.namespace, "load_weights", str(path), version, canary, seconds=seconds) for name in ref.names
    ]
    return ref.model_copy(update={"policy_version": version}), updates[0]


def weights_of(ref: EngineRef) -> int:
    """Version that the engines serve now. Raises `EngineError` if one is dead."""
    return min(_ping(name, ref.namespace).policy_version for name in ref.names)


def engine_status(ref: EngineRef) -> list[EngineStatus]:
    """How each engine is. Raises `EngineError` if one is dead."""
    return [_ping(name, ref.namespace) for name in ref.names]


def engine_logprobs(ref: EngineRef, token_ids: tuple[int, ...]) -> list[float]:
    """Log-probs of `token_ids` [T] at temperature 1 under the served weights: [T - 1]. Raises `EngineError`."""
    return _call(ref.names[0], ref.namespace, "logprobs", token_ids, seconds=_CALL_SECONDS)


def prove(ref: EngineRef, canary: Canary, *, tolerance: float) -> float:
    """Prove that every engine serves the learner's weights now, without an update: for engines that were found.

    Changes nothing and takes one prefill of the canary's tokens. Returns the largest mean difference of log-probs, in
    nats per token. Blocks.

    Raises:
        EngineError: an engine is dead or silent.
        CanaryError: the difference is more than `tolerance` (`inference.canary_tolerance`); the message holds the
            figures. The engine may still be given the right weights (`load_weights`).
    """
    return max(
        judge_reading(
            canary,
            _call(name, ref.namespace, "logprobs", canary.token_ids, seconds=_CALL_SECONDS),
            tolerance=tolerance,
            version=ref.policy_version,
        )
        for name in ref.names
    )


def stop_engines(ref: EngineRef) -> None:
    """End the engines' processes; quiet if they are gone already."""
    for name in ref.names:
        _remove(name, ref.namespace)


def _create(name: str, namespace: str, settings: EngineSettings) -> None:
    import ray

    inference = settings.inference
    # A GPU may be shared with the learner: one engine claims the part of it that it may fill with memory.
    gpus = inference.tensor_parallel if inference.tensor_parallel > 1 else inference.gpu_memory_fraction
    actor = ray.remote(EngineServer).options(
        name=name,
        namespace=namespace,
        lifetime="detached",  # found by name from any process of the run; an engine that is forgotten ends by itself
        num_cpus=1,
        num_gpus=gpus if settings.device == "cuda" else 0,
        max_concurrency=1000,
        max_restarts=0,
    )
    actor.remote(settings)


def _find(name: str, namespace: str) -> Any:
    import ray

    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        raise EngineError(f"there is no engine {name!r} in namespace {namespace!r}; ensure_engines starts it") from None


def _call(name: str, namespace: str, method: str, *args: Any, seconds: float) -> Any:
    """Call a method of an engine and wait for its result; what it raised, or Ray did, becomes `EngineError`."""
    import ray
    import ray.exceptions as failures

    try:
        return ray.get(getattr(_find(name, namespace), method).remote(*args), timeout=seconds)
    except failures.GetTimeoutError:
        raise EngineError(f"engine {name!r} did not answer {method!r} within {seconds:g} s") from None
    except failures.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, EngineError):
            raise type(cause)(f"engine {name!r}: {cause}") from None
        raise EngineError(f"engine {name!r} failed in {method!r}: {type(cause).__name__}: {cause}") from error
    except failures.RayError as error:
        raise EngineError(f"engine {name!r} is gone: {_first_line(error)}") from error


def _ping(name: str, namespace: str) -> EngineStatus:
    return _call(name, namespace, "ping", seconds=_CALL_SECONDS)


def _status_of_living(name: str, namespace: str, digest: str) -> EngineStatus | None:
    """Status of the engine if it can be kept."""
    try:
        status = _ping(name, namespace)
    except EngineError as error:
        logger.info("a new engine is due: %s", error)
        return None
    if status.digest != digest:
        logger.warning("engine %r was started with other settings and is replaced", name)
        return None
    return status


def _remove(name: str, namespace: str) -> None:
    """Kill an engine's process, and wait until its name is free."""
    import ray

    deadline = time.monotonic() + _CALL_SECONDS
    while time.monotonic() < deadline:
        try:
            actor = ray.get_actor(name, namespace=namespace)
        except ValueError:
            return
        ray.kill(actor)
        time.sleep(0.05)  # Ray tells nobody when a name is free again
    raise EngineError(f"engine {name!r} in namespace {namespace!r} cannot be removed: its name is still taken")


def _request_failure(name: str, error: Exception) -> EngineError | InfrastructureError:
    """What a call that Ray did not complete means for a request: the engine is gone, or this call went wrong."""
    from ray.exceptions import ActorUnavailableError, RayActorError

    if isinstance(error, TimeoutError):
        return EngineError(f"engine {name!r} is gone: no answer within {_CALL_SECONDS:g} s")
    if isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError):
        return EngineError(f"engine {name!r} is gone: {_first_line(error)}")
    return InfrastructureError(f"engine {name!r} could not be asked: {_first_line(error)}", where="generate")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
