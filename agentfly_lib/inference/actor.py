"""Engines as named Ray actors: made or found, given weights, proven, ended; `RayGenerate` samples from them.

A name and a namespace are all that one must know of an engine (`EngineRef`). What is done to several engines is done to
all at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agentfly_lib.configs import InferenceConfig, RunConfig
from agentfly_lib.errors import CanaryError, EngineError, ModelError, first_line
from agentfly_lib.inference.canary import judge_reading
from agentfly_lib.inference.client import RayGenerate, find_engine
from agentfly_lib.inference.placement import Placement, place, serves_adapters
from agentfly_lib.inference.rest import SleepLevel
from agentfly_lib.inference.server import EngineServer, EngineStatus
from agentfly_lib.inference.settings import EngineSettings, resolve_device
from agentfly_lib.inference.source import Transfer, WeightSource
from agentfly_lib.inference.weight_update import WeightUpdate, furthest
from agentfly_lib.ray_calls import end_named
from agentfly_lib.refs import EngineRef, ModelRef
from agentfly_lib.types import Canary

__all__ = [
    "RayGenerate",
    "engine_names",
    "engine_status",
    "ensure_engines",
    "load_weights",
    "open_transfer",
    "prove",
    "sleep_engines",
    "stop_engines",
    "wake_engines",
    "weights_of",
]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_CALL_SECONDS = 30.0
"""An actor that does not answer a plain call within this time is taken for dead."""
_UPDATE_SECONDS: float = InferenceConfig.model_fields["update_timeout_seconds"].default
_UPDATE_KEY = "inference.update_timeout_seconds"


def engine_names(config: RunConfig) -> tuple[str, ...]:
    """Of the run's engines, in their namespace."""
    return tuple(f"engine-{number}" for number in range(config.inference.replicas))


def ensure_engines(
    config: RunConfig,
    model: ModelRef,
    *,
    namespace: str,
    policy_version: int = 0,
    learner: bool = True,
    on_start: Callable[[str], None] = lambda name: None,
) -> EngineRef:
    """Find the run's engines, or start them with the weights of `model`, which are version `policy_version`.

    Idempotent. An engine that is found and answers is kept with whatever version it serves (the returned ref says
    which, the oldest counts; `prove` proves it); one that is dead, silent, or was started with other settings or from
    another model is replaced. They start side by side. Ray must be running. Blocks.

    learner: whether there is one, with which GPUs are shared out (`place`) and adapters come.
    on_start: told the name of each engine that was not found and has started, from any thread.

    Raises:
        ModelError: the directory of `model` holds no config or no safetensors weights.
        EngineError: an engine cannot start; the message holds the reason. Those that can have started.
        ConfigError: a GPU is asked for and there is none.
    """
    from agentfly_lib.cluster import gpu_count

    placement = place(config, gpu_count(), learner=learner)
    adapters = learner and serves_adapters(config)
    settings = _settings(config, model, policy_version, placement, adapters=adapters)
    names = engine_names(config)

    def ensure(name: str) -> int:
        found = _status_of_living(name, namespace, settings.digest) is not None
        if not found:
            _remove(name, namespace)
            seat = _seat(placement, names.index(name), namespace=namespace)
            _create(name, namespace, settings, seat)
        try:
            _call(
                name,
                namespace,
                "start",
                seconds=settings.inference.start_timeout_seconds,
                key="inference.start_timeout_seconds",
            )
        except EngineError:
            _remove(name, namespace)
            raise
        if not found:
            on_start(name)
        return _ping(name, namespace).policy_version

    return EngineRef(names=names, namespace=namespace, policy_version=min(_on_all(names, ensure)))


def load_weights(
    ref: EngineRef, source: WeightSource, *, version: int, canary: Canary | None, seconds: float = _UPDATE_SECONDS
) -> tuple[EngineRef, WeightUpdate]:
    """Let every engine serve the weights of `source` (a path is a safetensors file) as `version`, proven by `canary`.

    All at the same time; requests in flight go on under the new weights.
    Returns the update of the engine that came out furthest from the learner. Blocks.

    Raises:
        EngineError: an engine is dead, did not answer within `seconds`, or cannot load the file.
        CanaryError: an engine does not serve the learner's weights.
        The other engines serve them in either case. An engine with which a transfer broke off is ended: it holds half
        a model, which no later update mends.
    """

    def load(name: str) -> WeightUpdate:
        try:
            return _call(name, ref.namespace, "load_weights", source, version, canary, seconds=seconds, key=_UPDATE_KEY)
        except CanaryError:
            raise
        except EngineError:
            if isinstance(source, Transfer):
                _remove(name, ref.namespace)
            raise

    return ref.model_copy(update={"policy_version": version}), furthest(_on_all(ref.names, load))


def open_transfer(ref: EngineRef, init_infos: Sequence[Mapping[str, Any]], *, seconds: float = _UPDATE_SECONDS) -> None:
    """Let each engine meet the learner for transfers without a file, told by its own `init_infos`. Blocks.

    Raises:
        EngineError: an engine is dead, transfers by file, or did not meet the learner within `seconds`.
    """
    told = dict(zip(ref.names, init_infos, strict=True))
    _on_all(
        ref.names,
        lambda name: _call(name, ref.namespace, "open_transfer", told[name], seconds=seconds, key=_UPDATE_KEY),
    )


def sleep_engines(ref: EngineRef, level: SleepLevel, *, seconds: float = _UPDATE_SECONDS) -> None:
    """Let every engine give its GPU memory back; those that sleep already are left alone. Blocks.

    One that cannot, or does not answer within `seconds`, is ended: what matters is its memory, and a dead engine is
    replaced by whoever next needs one.
    """

    def rest(name: str) -> None:
        try:
            _call(name, ref.namespace, "sleep", level, seconds=seconds, key=_UPDATE_KEY)
        except EngineError as error:
            logger.warning("an engine that cannot sleep is ended: %s", error)
            _remove(name, ref.namespace)

    _on_all(ref.names, rest)


def wake_engines(ref: EngineRef, *, seconds: float = _UPDATE_SECONDS) -> None:
    """Let every engine take its GPU memory again; those that are awake are left alone. Blocks.

    Raises:
        EngineError: an engine is dead, or cannot.
    """
    _on_all(ref.names, lambda name: _call(name, ref.namespace, "wake", seconds=seconds, key=_UPDATE_KEY))


def weights_of(ref: EngineRef) -> int:
    """Version that all engines serve now, the oldest where they differ. Raises `EngineError` if one is dead."""
    return min(status.policy_version for status in engine_status(ref))


def engine_status(ref: EngineRef) -> list[EngineStatus]:
    """How each engine is. Raises `EngineError` if one is dead."""
    return _on_all(ref.names, lambda name: _ping(name, ref.namespace))


def prove(ref: EngineRef, canary: Canary, *, tolerance: float, seconds: float = _UPDATE_SECONDS) -> float:
    """Prove that every engine serves the learner's weights now, without an update: for engines that were found.

    Changes nothing and takes one prefill of the canary's tokens, which waits for a place among the sequences that are
    decoded. Returns the largest mean difference of log-probs, in nats per token. Blocks.

    Raises:
        EngineError: an engine is dead, or did not answer within `seconds`.
        CanaryError: the difference is more than `tolerance` (`inference.canary_tolerance`); the message holds the
            figures. The engine may still be given the right weights (`load_weights`).
    """

    def difference(name: str) -> float:
        logprobs = _call(
            name, ref.namespace, "logprobs", canary.token_ids, canary.images, seconds=seconds, key=_UPDATE_KEY
        )
        return judge_reading(canary, logprobs, tolerance=tolerance, version=ref.policy_version)

    return max(_on_all(ref.names, difference))


def stop_engines(ref: EngineRef) -> None:
    """End the engines' processes; quiet if they are gone already."""
    _on_all(ref.names, lambda name: _remove(name, ref.namespace))


def _on_all(names: Sequence[str], work: Callable[[str], Result]) -> list[Result]:
    """`work` on every engine at the same time; results in order. Waits for all, then raises the worst failure."""
    if len(names) == 1:
        return [work(names[0])]
    with ThreadPoolExecutor(len(names), thread_name_prefix="engines") as pool:
        calls = [pool.submit(work, name) for name in names]
    errors = [error for call in calls if (error := call.exception()) is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, CanaryError)), errors[0])
    return [call.result() for call in calls]


def _settings(
    config: RunConfig, model: ModelRef, policy_version: int, placement: Placement, *, adapters: bool
) -> EngineSettings:
    from agentfly_lib.cluster import gpu_count

    for pattern in ("config.json", "*.safetensors"):
        if not any(model.path.glob(pattern)):
            raise ModelError(f"{model.path} cannot be served: it holds no {pattern}")
    return EngineSettings(
        inference=config.inference,
        model_path=model.path,
        context_length=config.rollout.context_length,
        device=resolve_device(config.inference.device, gpu_count()),
        model_fingerprint=model.fingerprint,
        policy_version=policy_version,
        canary_tolerance=config.inference.canary_tolerance,
        sleeps=placement.sleeps,
        transfer=placement.transfer,
        lora_rank=config.learner.lora.rank if adapters and config.learner.lora else 0,
    )


def _create(name: str, namespace: str, settings: EngineSettings, options: dict[str, Any]) -> None:
    """Begin an engine's process; `options` (Ray's) say where, and with which GPUs."""
    import ray

    actor = ray.remote(EngineServer).options(
        name=name,
        namespace=namespace,
        lifetime="detached",  # found by name from any process of the run; an engine that is forgotten ends by itself
        num_cpus=1,
        max_concurrency=1000,
        max_restarts=0,
        **options,
    )
    actor.remote(settings)


def _seat(placement: Placement, engine: int, *, namespace: str) -> dict[str, Any]:
    """Ray options of an engine's actor: its GPUs and its place in the group."""
    from agentfly_lib.cluster import bundle_gpus, bundle_options

    if not placement.engines:
        return {"num_gpus": 0}
    bundles = placement.engines[engine]
    options: dict[str, Any] = {
        "num_gpus": placement.engine_gpus,
        **bundle_options(placement.bundles, bundles[0], namespace=namespace),
    }
    if not placement.engine_gpus:  # Ray shares out no parts of several GPUs
        names = bundle_gpus(placement.bundles, bundles, namespace=namespace)
        options["runtime_env"] = {"env_vars": {"CUDA_VISIBLE_DEVICES": ",".join(names)}}
    return options


def _call(name: str, namespace: str, method: str, *args: Any, seconds: float, key: str | None = None) -> Any:
    """Call a method of an engine and wait for its result; what it raised, or Ray did, becomes `EngineError`.

    key: of the config, which sets the limit.
    """
    import ray
    import ray.exceptions as failures

    try:
        return ray.get(getattr(find_engine(name, namespace), method).remote(*args), timeout=seconds)
    except failures.GetTimeoutError:
        raise EngineError(
            f"engine {name!r} did not answer {method!r} within {seconds:g} s"
            + (f"; if it only needs longer, raise {key}" if key else "")
        ) from None
    except failures.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, EngineError):
            raise type(cause)(f"engine {name!r}: {cause}") from None
        raise EngineError(f"engine {name!r} failed in {method!r}: {type(cause).__name__}: {cause}") from error
    except failures.RayError as error:
        raise EngineError(f"engine {name!r} is gone: {type(error).__name__}: {first_line(error)}") from error


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
    if end_named([name], namespace, seconds=_CALL_SECONDS):
        raise EngineError(f"engine {name!r} in namespace {namespace!r} cannot be removed: its name is still taken")
