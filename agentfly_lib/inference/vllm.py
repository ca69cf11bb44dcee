"""A vLLM engine in this process: token ids in, sampled ids and the log-probs of the sampled distribution out.

The same code runs on a CPU and on GPUs. The engine lives on its own thread (`EngineThread`); what is awaited here is
answered from there. Requests made in one turn of the event loop are handed over together, and what one step of the
engine brings comes back together. `engine_environment` must hold in this process before vLLM is imported for the first
time, which `start` does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from agentfly_lib.chat.image_reader import ImageReader, reads
from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference.canary import CanaryReading, CanaryReport, judge_canary
from agentfly_lib.inference.checks import check_pictures, check_request
from agentfly_lib.inference.engine_thread import EngineThread
from agentfly_lib.inference.generate import Delta, Generation, GenerationRequest
from agentfly_lib.inference.rest import Rest, SleepLevel
from agentfly_lib.inference.settings import EngineSettings, engine_arguments
from agentfly_lib.inference.source import WeightSource, require_present
from agentfly_lib.inference.stop_strings import StopStrings, stops_of, text_decoder
from agentfly_lib.inference.translate import chosen_logprobs, finish_of, generation_of, sampling_params
from agentfly_lib.inference.vllm_pictures import engine_prompt, images_alone
from agentfly_lib.inference.weight_update import WeightUpdate, load_in_place, read_canary, reset_caches
from agentfly_lib.types import Canary, FinishReason

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["VllmEngine"]

logger = logging.getLogger(__name__)

_UNTAUGHT = "the engine was given none of the learner's weights yet"
_ASLEEP = "the engine sleeps while the learner computes; it is woken before it is given the next weights"

Result = TypeVar("Result")


@dataclass(slots=True)
class _Waiting:
    """A request whose answer is awaited."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    started: float
    on_delta: Callable[[Delta], None] | None = None
    stop_strings: StopStrings | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Of the weights that sampled each token."""
    found: bool = False
    """A stop text was found; what the engine samples beyond it is not wanted."""
    done: bool = False
    """The answer is on its way."""

    @property
    def each_token(self) -> bool:
        """Whether each token is looked at; the engine then gives each only once, and they are gathered here."""
        return self.on_delta is not None or self.stop_strings is not None

    def gather(self, output: RequestOutput, version: int) -> list[int]:
        """Take an output that holds new tokens only, all sampled by one version; those that are wanted."""
        completion = output.outputs[0]
        token_ids = list(completion.token_ids)
        if not token_ids or self.found:
            return []
        logprobs = chosen_logprobs(completion.logprobs, token_ids)  # pyright: ignore[reportArgumentType] - flat is asked for
        if self.stop_strings is not None:
            number = next((n for n, token in enumerate(token_ids, start=1) if self.stop_strings.push(token)), None)
            if number is not None:
                self.found, token_ids, logprobs = True, token_ids[:number], logprobs[:number]
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.versions += [version] * len(token_ids)
        return token_ids

    def checked(self, output: RequestOutput, generation: Generation) -> Generation | EngineError:
        """The generation, if the engine saw the prompt that it was given."""
        if self.request.images and list(output.prompt_token_ids or ()) != list(self.request.token_ids):
            return EngineError(
                f"request {self.request.request_id!r}: the engine used other image tokens than were given"
            )
        return generation

    def generation(self, output: RequestOutput) -> Generation | None:
        """What was sampled, if `output` is the last one, or a stop text was found in it."""
        seconds = time.perf_counter() - self.started
        if not self.each_token:
            return generation_of(output, seconds=seconds) if output.finished else None
        if not (output.finished or self.found):
            return None
        return Generation(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish=FinishReason.STOP if self.found else finish_of(output),
            policy_version=self.versions[0] if self.versions else -1,
            versions=self.versions,
            cached_tokens=output.num_cached_tokens or 0,
            seconds=seconds,
        )


class VllmEngine:
    """One engine; a `GenerateStream`.

    Use from one event loop. `start` first, `close` at the end.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.policy_version = settings.policy_version
        """Version of the weights that are served; -1 after an update that failed, until one succeeds."""
        self._thread = EngineThread(self._build, on_outputs=self._on_outputs, on_death=self._on_death)
        self._waiting: dict[str, _Waiting] = {}
        self._outbox: list[str] = []
        self._names = itertools.count()
        self._vocabulary = 0
        self._reader: ImageReader | None = None
        """Of a model that sees."""
        self._unproven: str | None = None
        """Why the weights in the engine must not be used; None while they may."""
        self._adapter: LoRARequest | None = None
        """What requests name to be served by the adapter that was loaded last; None for the weights alone."""
        self._rest = Rest()
        self._forgot = False
        """The weights are gone since it slept."""

    @property
    def error(self) -> EngineError | None:
        """Why the engine is dead or closed; None while it lives."""
        return self._thread.error

    @property
    def in_flight(self) -> int:
        """Requests that are awaited now."""
        return len(self._waiting)

    async def start(self) -> None:
        """Import vLLM and load the model.

        Raises:
            EngineError: it did not start within `start_timeout_seconds`, or cannot; the message holds vLLM's reason.
        """
        self._loop = asyncio.get_running_loop()
        limit = self.settings.inference.start_timeout_seconds
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._thread.start()), limit)
        except TimeoutError:
            raise EngineError(
                f"the engine did not start within {limit:g} s; inference.start_timeout_seconds sets the limit"
            ) from None
        except EngineError as error:
            raise EngineError(
                f"{error} (model {self.settings.model_path}, {self.settings.device})"
            ) from error.__cause__

    async def close(self, timeout: float = 10.0) -> None:
        """End the engine; whoever still waits gets an `EngineError`."""
        if not await asyncio.to_thread(self._thread.stop, timeout):
            logger.warning("the engine's thread still runs %g s after it was told to end", timeout)

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`."""
        return await self._answer(request, None)

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """See `GenerateStream.generate_stream`."""
        return await self._answer(request, on_delta)

    async def _answer(self, request: GenerationRequest, on_delta: Callable[[Delta], None] | None) -> Generation:
        self._check(request)
        started = time.perf_counter()
        decode = await asyncio.to_thread(text_decoder, self.settings.model_path) if request.sampling.stop else None
        if request.images:
            await asyncio.to_thread(check_pictures, request, self._reader)
        name = f"{next(self._names)}-{request.request_id}"
        waiting = _Waiting(
            request=request,
            future=self._loop.create_future(),
            started=started,
            on_delta=on_delta,
            stop_strings=stops_of(request, decode),
        )
        self._waiting[name] = waiting
        if not self._outbox:
            self._loop.call_soon(self._hand_over)
        self._outbox.append(name)
        limit = self.settings.inference.request_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await waiting.future
        except TimeoutError:
            raise InfrastructureError(
                f"request {request.request_id!r} had no answer within {limit:g} s (inference.request_timeout_seconds)",
                where="generate",
            ) from None
        finally:
            if self._waiting.pop(name, None) is not None:  # given up, not answered
                self._abort(name)

    async def logprobs(self, token_ids: Sequence[int], images: Sequence[bytes] = ()) -> list[float]:
        """The engine's log-probs of given tokens [T] at temperature 1: [T - 1], never from the prefix cache.

        images: encoded, in the order of their placeholders.

        Raises:
            EngineError: the engine is dead or asleep.
        """
        ids = tuple(token_ids)

        def read(engine: LLMEngine) -> list[float]:
            if self._rest.level:
                raise EngineError(_ASLEEP)
            return self._read(engine, ids, images, self._on_outputs, read_cache=False).logprobs

        return await self._command(read)

    async def load_weights(self, source: WeightSource, version: int, canary: Canary | None = None) -> WeightUpdate:
        """Serve the weights of `source`, a safetensors file for one, from now on, as `version`.

        Requests in flight are held, not lost: they go on with the new weights, everything before recomputed.
        `Generation.versions` says which version sampled which token.

        Raises:
            EngineError: the engine is dead or asleep, the file is missing, or it does not fit the model.
            CanaryError: the engine does not serve what the learner holds.
            In all cases but a missing file nothing is generated any more until an update succeeds, and requests in
            flight fail: tokens of unproven weights are worse than none.
        """
        return await self._command(lambda engine: self._update(engine, source, version, canary))

    async def open_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Meet the learner for weight transfers, as vLLM's transfer engine wants it (`EngineSettings.transfer`).

        Raises:
            EngineError: the engine is dead, transfers by file only, or the two do not meet.
        """

        def meet(engine: LLMEngine) -> None:
            try:
                engine.collective_rpc("init_weight_transfer_engine", args=(dict(init_info),))
            except Exception as error:
                raise EngineError(f"no weight transfer: {type(error).__name__}: {error}") from error

        await self._command(meet)

    async def sleep(self, level: SleepLevel) -> bool:
        """Give GPU memory back until `wake`; False if it was asleep already. Requests fail while it sleeps.

        After level 2 the weights are gone, and nothing is generated before an update succeeds.

        Raises:
            EngineError: the engine is dead, or could not; what memory it holds is then unknown.
        """
        return await self._command(lambda engine: self._sleep(engine, level))

    async def wake(self) -> bool:
        """Take the memory again; False if it was awake. Raises `EngineError` as `sleep` does."""
        return await self._command(self._wake)

    def _check(self, request: GenerationRequest) -> None:
        if self._thread.error is not None:
            raise EngineError(str(self._thread.error)) from self._thread.error
        if not self._vocabulary:
            raise EngineError("the engine is still starting")
        if (reason := self._unusable) is not None:
            raise EngineError(reason)
        check_request(request, context_length=self.settings.context_length)
        if min(request.token_ids) < 0 or max(request.token_ids) >= self._vocabulary:
            raise ValueError(
                f"request {request.request_id!r} holds token {max(request.token_ids)}; the model's vocabulary has "
                f"{self._vocabulary} entries, from 0"
            )

    async def _command(self, command: Callable[[LLMEngine], Result]) -> Result:
        return await asyncio.wrap_future(self._thread.run(command))

    # On the event loop's thread.

    def _hand_over(self) -> None:
        names, self._outbox = self._outbox, []
        batch = [(name, self._waiting[name]) for name in names if name in self._waiting]
        self._send(lambda engine: self._admit(engine, batch))

    def _abort(self, name: str) -> None:
        self._send(lambda engine: engine.abort_request([name]))

    def _send(self, command: Callable[[LLMEngine], None]) -> None:
        try:
            sent: Future[None] = self._thread.run(command)
        except EngineError:
            return  # whoever waits hears of it from `_on_death`
        sent.add_done_callback(_log_failure)

    def _tell(self, deltas: list[tuple[_Waiting, list[int]]]) -> None:
        for waiting, token_ids in deltas:
            if waiting.on_delta is None or waiting.future.done():
                continue
            try:
                waiting.on_delta(token_ids)
            except Exception as error:  # noqa: BLE001 - it is the caller's own, and raised there
                waiting.future.set_exception(error)

    def _resolve(self, outputs: list[tuple[str, Generation | Exception]]) -> None:
        for name, outcome in outputs:
            waiting = self._waiting.pop(name, None)
            if waiting is None or waiting.future.done():
                continue
            if waiting.found:  # the engine would go on
                self._abort(name)
            if isinstance(outcome, Exception):
                waiting.future.set_exception(outcome)
            else:
                waiting.future.set_result(outcome)

    def _fail_all(self, reason: str) -> None:
        for name in list(self._waiting):
            self._resolve([(name, EngineError(reason))])
            self._abort(name)

    # On the engine's thread.

    def _build(self) -> LLMEngine:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        if self.settings.device == "cpu":
            from vllm import _custom_ops

            # oneDNN would keep packed copies of the weights, which no update reaches; without it, decoding is as fast.
            _custom_ops._supports_onednn = False
        if reads(self.settings.model_path):
            self._reader = ImageReader.of(self.settings.model_path)
            images_alone(self._reader)
        engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(self.settings)))
        # Else `min_tokens` would ban the end-of-sequence ids of the model's config, which end nothing here.
        engine.input_processor.generation_config_fields = {}
        engine.renderer.get_eos_token_id = lambda: None  # type: ignore[method-assign]
        engine.set_weight_version(str(self.settings.policy_version))
        self._vocabulary = engine.model_config.get_vocab_size()
        return engine

    def _admit(self, engine: LLMEngine, batch: list[tuple[str, _Waiting]]) -> None:
        refused: list[tuple[str, Generation | Exception]] = []
        for name, waiting in batch:
            if (reason := self._unusable) is not None:
                refused.append((name, EngineError(reason)))
                continue
            request = waiting.request
            try:
                params = sampling_params(request, each_token=waiting.each_token)
                prompt = engine_prompt(engine, self._reader, request.token_ids, request.images)
                engine.add_request(name, prompt, params, lora_request=self._adapter, priority=request.priority)
            except Exception as error:  # noqa: BLE001 - refusals are of many kinds; other requests are not to blame
                refused.append((name, ValueError(f"request {request.request_id!r}: {error}")))
        if refused:
            self._loop.call_soon_threadsafe(self._resolve, refused)

    def _on_outputs(self, outputs: list[RequestOutput]) -> None:
        if self._unproven is not None:
            return
        resolved: list[tuple[str, Generation | Exception]] = []
        told: list[tuple[_Waiting, list[int]]] = []
        for output in outputs:
            waiting = self._waiting.get(output.request_id)
            if waiting is None or waiting.done:
                continue
            if waiting.each_token and (token_ids := waiting.gather(output, self.policy_version)):
                told.append((waiting, token_ids))
            if (generation := waiting.generation(output)) is not None:
                waiting.done = True
                resolved.append((output.request_id, waiting.checked(output, generation)))
        if told:
            self._loop.call_soon_threadsafe(self._tell, told)
        if resolved:
            self._loop.call_soon_threadsafe(self._resolve, resolved)

    def _on_death(self, error: EngineError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._fail_all, str(error))
        except RuntimeError:  # the event loop is closed: nobody waits any more
            logger.debug("the engine ended after its event loop: %s", error)

    def _update(self, engine: LLMEngine, source: WeightSource, version: int, canary: Canary | None) -> WeightUpdate:
        require_present(source)
        if self._rest.level:
            raise EngineError(_ASLEEP)
        before = None if canary is None else self._canary_before(engine, canary)
        held: list[RequestOutput] = []  # sampled while the new weights are not yet proven
        report: CanaryReport | None = None
        try:
            self._adapter = load_in_place(engine, source)
            engine.set_weight_version(str(version))
            self._reset_caches(engine)
            if canary is not None and before is not None:
                after = self._read(engine, canary.token_ids, canary.images, held.extend, read_cache=True)
                tolerance = self.settings.canary_tolerance
                report = judge_canary(canary, before=before, after=after, tolerance=tolerance, version=version)
        except Exception as error:
            self._unproven = f"the engine's weights may not be used, the update to version {version} failed: {error}"
            self.policy_version = -1
            self._loop.call_soon_threadsafe(self._fail_all, self._unproven)
            raise
        self._unproven, self._forgot = None, False
        self.policy_version = version
        self._on_outputs(held)
        return WeightUpdate(version=version, canary=report)

    def _canary_before(self, engine: LLMEngine, canary: Canary) -> CanaryReading:
        """What the weights say that are about to go; nothing where they are gone already."""
        if self._forgot:
            return CanaryReading(logprobs=[math.nan] * len(canary.logprobs), cached_tokens=0)
        return self._read(engine, canary.token_ids, canary.images, self._on_outputs, read_cache=False)

    def _read(
        self,
        engine: LLMEngine,
        token_ids: tuple[int, ...],
        images: Sequence[bytes],
        on_outputs: Callable[[list[RequestOutput]], None],
        *,
        read_cache: bool,
    ) -> CanaryReading:
        return read_canary(
            engine,
            token_ids,
            on_outputs,
            read_cache=read_cache,
            adapter=self._adapter,
            images=images,
            reader=self._reader,
        )

    def _sleep(self, engine: LLMEngine, level: SleepLevel) -> bool:
        if self._rest.level:
            return False
        self._loop.call_soon_threadsafe(self._fail_all, _ASLEEP)
        if level == 2:
            self._forgot, self.policy_version = True, -1
            self._unproven = "the engine has given up its weights to sleep; load the learner's into it"
        try:
            return self._rest.sleep(engine, level)
        except Exception as error:
            raise EngineError(f"the engine cannot sleep: {type(error).__name__}: {error}") from error

    def _wake(self, engine: LLMEngine) -> bool:
        try:
            return self._rest.wake(engine)
        except Exception as error:
            raise EngineError(f"the engine cannot wake: {type(error).__name__}: {error}") from error

    @property
    def _unusable(self) -> str | None:
        """Why nothing can be generated now."""
        if self._rest.level:
            return _ASLEEP
        return self._unproven or (_UNTAUGHT if self.policy_version < 0 else None)

    def _reset_caches(self, engine: LLMEngine) -> None:
        reset_caches(engine)  # tests forget it, and see whether the proof notices


def _log_failure(sent: Future[None]) -> None:
    if not sent.cancelled() and (error := sent.exception()) is not None:
        logger.error("a command to the engine failed: %s", error)
