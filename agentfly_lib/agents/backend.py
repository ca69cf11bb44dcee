"""The engine behind an agent that is used on its own, outside a training run.

`backend_config` names it: `async_vllm` (vLLM in this process), `transformers` (any machine, any model), `openai` (a
server that speaks OpenAI's protocol), or `scripted` (written replies, for tests and demos). An engine starts at the
first request, and serves an agent that is used from one `asyncio.run` after another.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agentfly_lib.chat import ChatFormat
from agentfly_lib.configs.base import Config
from agentfly_lib.configs.faults import explain
from agentfly_lib.configs.inference import OpenAIConfig, TransformersConfig, VllmEngineConfig
from agentfly_lib.errors import ConfigError, EngineError, ModelError
from agentfly_lib.inference import Delta, Generate, Generation, GenerationRequest, ScriptedGenerate
from agentfly_lib.inference.openai import OpenAIEngine
from agentfly_lib.inference.relay import relayed
from agentfly_lib.inference.transformers import TransformersEngine

__all__ = ["HostedVllm", "open_backend"]

DEFAULT_CONTEXT_LENGTH = 4096
_NAMES = ("async_vllm", "vllm", "transformers", "openai", "scripted")
_ALIASES = {
    "gpu_memory_utilization": "gpu_memory_fraction",
    "max_model_len": "context_length",
    "max_num_seqs": "max_sequences",
    "tensor_parallel_size": "tensor_parallel",
}
"""vLLM's own words for our settings."""

Result = TypeVar("Result")
Settings = TypeVar("Settings", bound=Config)


def open_backend(config: Mapping[str, Any], *, model: str | Path, chat: ChatFormat) -> tuple[Generate, int]:
    """The engine that a `backend_config` names, not started, and its context length. Raises `ConfigError`."""
    options = dict(config)
    name = options.pop("backend", "async_vllm")
    options = {_ALIASES.get(key, key): value for key, value in options.items()}
    context_length = options.pop("context_length", DEFAULT_CONTEXT_LENGTH)
    if not isinstance(context_length, int) or context_length < 2:
        raise ConfigError(f"backend_config: context_length = {context_length!r} must be a number of tokens")
    match name:
        case "scripted":
            script = options.pop("script", None)
            if script is None or options:
                raise ConfigError(
                    "backend_config of the scripted backend has the keys 'script' and 'context_length' only"
                )
            return ScriptedGenerate(script, format=chat), context_length
        case "transformers":
            settings = _settings(TransformersConfig, options)
            return TransformersEngine(model, settings, context_length=context_length), context_length
        case "openai":
            return OpenAIEngine(_settings(OpenAIConfig, options), model=str(model), format=chat), context_length
        case "async_vllm" | "vllm":
            settings = _settings(VllmEngineConfig, options)
            return HostedVllm(settings, model=model, context_length=context_length), context_length
    raise ConfigError(f"unknown backend {name!r}; there are: {', '.join(_NAMES)}")


def _settings(config: type[Settings], options: Mapping[str, Any]) -> Settings:
    """Raises `ConfigError` naming each key that cannot be used."""
    try:
        return config.model_validate(dict(options))
    except ValidationError as error:
        raise ConfigError(explain(error, config.model_fields, where="backend_config")) from error


@dataclass(slots=True, eq=False)
class _Home:
    """The event loop in which an engine lives, on a thread of its own."""

    loop: asyncio.AbstractEventLoop
    starting: asyncio.Task[Any] | None = None
    """The newest start; its result is the engine."""


class HostedVllm:
    """vLLM in this process, on its own thread and event loop; a `GenerateStream` for any event loop."""

    def __init__(self, inference: VllmEngineConfig, *, model: str | Path, context_length: int) -> None:
        self._inference = inference
        self._model = model
        self._context_length = context_length
        self._lock = threading.Lock()
        self._home: _Home | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`; the first request starts the engine (`EngineError` if it cannot)."""
        return await self._there(lambda home: self._generate(home, request, None))

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """See `GenerateStream.generate_stream`."""
        return await relayed(lambda tell: self._there(lambda home: self._generate(home, request, tell)), on_delta)

    async def close(self) -> None:
        """Ends the engine, also one that is still starting; a later request starts a new one."""
        with self._lock:
            home, self._home = self._home, None
        if home is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_close(home), home.loop))
        home.loop.call_soon_threadsafe(home.loop.stop)

    async def _there(self, work: Callable[[_Home], Coroutine[Any, Any, Result]]) -> Result:
        with self._lock:  # until the work is in the loop, so that who closes comes after it
            if self._home is None:
                self._home = _Home(asyncio.new_event_loop())
                threading.Thread(target=self._home.loop.run_forever, name="agentfly-engine-loop", daemon=True).start()
            answer = asyncio.run_coroutine_threadsafe(work(self._home), self._home.loop)
        return await asyncio.wrap_future(answer)

    async def _generate(
        self, home: _Home, request: GenerationRequest, tell: Callable[[Delta], None] | None
    ) -> Generation:
        starting = home.starting
        if starting is None or (starting.done() and starting.exception() is not None):
            starting = home.starting = asyncio.ensure_future(self._start())
        try:
            engine = await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise EngineError("the engine was closed while it started") from None
            raise
        return await (engine.generate(request) if tell is None else engine.generate_stream(request, tell))

    async def _start(self) -> Any:
        import torch

        from agentfly_lib.inference.settings import EngineSettings, engine_environment, resolve_device
        from agentfly_lib.inference.vllm import VllmEngine

        settings = EngineSettings(
            inference=self._inference,
            model_path=_local_directory(self._model),
            context_length=self._context_length,
            device=resolve_device(self._inference.device, torch.cuda.device_count()),
        )
        for key, value in engine_environment(settings).items():
            os.environ.setdefault(key, value)  # the process is the user's: what they set stands
        engine = VllmEngine(settings)
        try:
            await engine.start()
        except BaseException:  # whoever gave the start up: its thread goes on, unless it is told to end
            await engine.close()
            raise
        return engine


async def _close(home: _Home) -> None:
    if (starting := home.starting) is None:
        return
    starting.cancel()
    await asyncio.wait({starting})
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().close()


def _local_directory(model: str | Path) -> Path:
    path = Path(model)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(model)))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"{model} is neither a local directory nor a model that can be downloaded: {error}") from error
