"""An update of the weights, as it runs on the engine's thread: load, forget what the old weights computed, prove it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from agentfly_lib.errors import EngineError
from agentfly_lib.inference.canary import CanaryReading, CanaryReport
from agentfly_lib.inference.translate import canary_params, chosen_logprobs

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["WeightUpdate", "load_in_place", "read_canary", "reset_caches"]

OnOutputs = Callable[[list["RequestOutput"]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """What an update did, and how long its parts took (wall seconds)."""

    version: int
    load_seconds: float
    reset_seconds: float
    canary_seconds: float
    canary: CanaryReport | None
    """None if no canary was given."""


def load_in_place(engine: LLMEngine, path: Path) -> float:
    """Load a safetensors file into the running model; seconds.

    Raises:
        EngineError: it cannot be loaded; which weights the engine now has is unknown.
    """
    started = time.perf_counter()
    try:
        engine.collective_rpc("load_safetensors", args=(str(path),))
    except Exception as error:
        raise EngineError(f"weights cannot be loaded from {path}: {type(error).__name__}: {error}") from error
    return time.perf_counter() - started


def reset_caches(engine: LLMEngine) -> float:
    """Forget keys, values and image features of the old weights; seconds.

    Running requests go back to the queue, from which they are computed anew, so that what they sample from here on
    comes from the new weights alone.
    """
    started = time.perf_counter()
    if not engine.reset_prefix_cache(reset_running_requests=True):
        raise EngineError("the engine could not reset its prefix cache after a weight update")
    engine.reset_encoder_cache()
    return time.perf_counter() - started


def read_canary(
    engine: LLMEngine, token_ids: tuple[int, ...], on_outputs: OnOutputs, *, read_cache: bool
) -> CanaryReading:
    """Log-probs of `token_ids` [T] under the weights served now; outputs of other requests go to `on_outputs`.

    The prefix cache holds the tokens afterwards, whether it was read or not, under a salt of its own: what the canary
    finds there, an earlier canary left.
    """
    from vllm.inputs.engine import tokens_input

    name = f"canary-{uuid4().hex}"
    engine.add_request(name, tokens_input(list(token_ids), cache_salt="canary"), canary_params(read_cache=read_cache))
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
