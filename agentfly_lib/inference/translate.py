"""Between our words and vLLM's: a request into sampling parameters, a finished output into a generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentfly_lib.inference.generate import Generation, GenerationRequest
from agentfly_lib.types import FinishReason

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import RequestOutput

__all__ = ["canary_params", "chosen_logprobs", "finish_of", "generation_of", "sampling_params"]

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def sampling_params(request: GenerationRequest, *, each_token: bool = False) -> SamplingParams:
    """vLLM's parameters for one turn. End-of-sequence ids of the model's config do not count, only the request's do.

    each_token: outputs come at every token and hold what is new; else one comes at the end and holds everything.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=0.0 if request.greedy else sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=min(sampling.min_tokens, request.max_tokens),
        logit_bias=dict(sampling.logit_bias) or None,
        seed=None if request.greedy else request.seed,
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if each_token else RequestOutputKind.FINAL_ONLY,
    )


def canary_params(*, read_cache: bool) -> SamplingParams:
    """Parameters for the log-probs of the prompt's own tokens; left alone, vLLM would not read its prefix cache."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=0,
        flat_logprobs=True,
        skip_reading_prefix_cache=not read_cache,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def generation_of(output: RequestOutput, *, seconds: float) -> Generation:
    """The generation that a finished output holds. vLLM's label of the weights is our version."""
    completion = output.outputs[0]
    spans = completion.weight_versions
    token_ids = list(completion.token_ids)
    return Generation(
        token_ids=token_ids,
        logprobs=chosen_logprobs(completion.logprobs, token_ids),  # pyright: ignore[reportArgumentType] - flat is asked for
        finish=finish_of(output),
        policy_version=int(spans[0].version) if spans else -1,
        versions=[int(span.version) for span in spans or () for _ in range(span.start, span.end)],
        cached_tokens=output.num_cached_tokens or 0,
        seconds=seconds,
    )


def finish_of(output: RequestOutput) -> FinishReason:
    """Why a finished output is."""
    return _FINISH.get(output.outputs[0].finish_reason or "", FinishReason.ABORT)


def chosen_logprobs(table: FlatLogprobs, token_ids: Sequence[int]) -> list[float]:
    """The log-prob of `token_ids[i]` at position i of `table`, which may list other tokens too, in any order.

    Raises:
        KeyError: a position does not hold its token.
    """
    if len(table) != len(token_ids):
        raise KeyError(f"{len(token_ids)} tokens, but log-probs for {len(table)} positions")
    values = []
    for start, end, token in zip(table.start_indices, table.end_indices, token_ids, strict=True):
        try:
            values.append(table.logprobs[table.token_ids.index(token, start, end)])
        except ValueError:
            raise KeyError(f"token {token} is not among the log-probs of its position") from None
    return values
