"""An update of the weights, as it runs on the engine's thread: load, forget what the old weights computed, prove it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from agentfly_lib.chat.image_reader import ImageReader
from agentfly_lib.errors import EngineError
from agentfly_lib.inference.canary import CanaryReading, CanaryReport
from agentfly_lib.inference.source import AdapterFolder, Transfer, WeightSource
from agentfly_lib.inference.translate import canary_params, chosen_logprobs
from agentfly_lib.inference.vllm_pictures import engine_prompt

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["WeightUpdate", "furthest", "load_in_place", "read_canary", "reset_caches"]

_ADAPTER = "policy"
_BEFORE_ALL = -(2**31)
"""Priority of what is asked to prove the weights: an update waits for it."""

OnOutputs = Callable[[list["RequestOutput"]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """What an update did."""

    version: int
    canary: CanaryReport | None
    """None if no canary was given."""


def furthest(updates: Sequence[WeightUpdate]) -> WeightUpdate:
    """Of updates of several engines, that of the one that came out furthest from the learner."""
    return max(updates, key=lambda update: update.canary.mean_difference if update.canary else 0.0)


def load_in_place(engine: LLMEngine, source: WeightSource) -> LoRARequest | None:
    """Load new weights into the running model; the adapter that requests must name from now on, if it is one.

    Raises:
        EngineError: they cannot be loaded; which weights the engine now has is unknown.
    """
    adapter = None
    try:
        match source:
            case AdapterFolder(path):
                adapter = _load_adapter(engine, path)
            case Transfer(update_info):
                engine.collective_rpc("start_weight_update")
                engine.collective_rpc("update_weights", args=(dict(update_info),))
                engine.collective_rpc("finish_weight_update")
            case path:
                engine.collective_rpc("load_safetensors", args=(str(path),))
    except Exception as error:
        where = "what the learner sends" if isinstance(source, Transfer) else getattr(source, "path", source)
        raise EngineError(f"weights cannot be loaded from {where}: {type(error).__name__}: {error}") from error
    return adapter


def _load_adapter(engine: LLMEngine, path: Path) -> LoRARequest:
    from vllm.lora.request import LoRARequest

    if not engine.add_lora(LoRARequest(_ADAPTER, 1, str(path), load_inplace=True)):
        raise EngineError("the engine refused the adapter")
    return LoRARequest(_ADAPTER, 1, str(path))


def reset_caches(engine: LLMEngine) -> None:
    """Forget keys, values and image features of the old weights.

    Running requests go back to the queue, from which they are computed anew, so that what they sample from here on
    comes from the new weights alone.
    """
    if not engine.reset_prefix_cache(reset_running_requests=True):
        raise EngineError("the engine could not reset its prefix cache after a weight update")
    engine.reset_encoder_cache()


def read_canary(
    engine: LLMEngine,
    token_ids: tuple[int, ...],
    on_outputs: OnOutputs,
    *,
    read_cache: bool,
    adapter: LoRARequest | None = None,
    images: Sequence[bytes] = (),
    reader: ImageReader | None = None,
) -> CanaryReading:
    """Log-probs of `token_ids` [T] under the weights served now; outputs of other requests go to `on_outputs`.

    The prefix cache holds the tokens afterwards, whether it was read or not, under a salt of its own: what the canary
    finds there, an earlier canary left. `images` are read by `reader`.
    """
    name = f"canary-{uuid4().hex}"
    params = canary_params(read_cache=read_cache)
    prompt = engine_prompt(engine, reader, token_ids, images, cache_salt="canary")
    engine.add_request(name, prompt, params, lora_request=adapter, priority=_BEFORE_ALL)
    while True:
        outputs = engine.step()
        mine = [output for output in outputs if output.request_id == name and output.finished]
        on_outputs([output for output in outputs if output.request_id != name])  # pyright: ignore[reportArgumentType]
        if mine:
            break
    cached, table = mine[0].num_cached_tokens or 0, mine[0].prompt_logprobs  # pyright: ignore[reportAttributeAccessIssue]
    assert table is not None
    # Row t + 1 of the table speaks of token t + 1 given those up to t; nothing was computed at cached positions.
    computed = chosen_logprobs(table[cached + 1 :], token_ids[cached + 1 :])  # pyright: ignore[reportArgumentType]
    return CanaryReading(logprobs=[math.nan] * cached + computed, cached_tokens=cached)
