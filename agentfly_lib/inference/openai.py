"""Any server that speaks OpenAI's protocol as an engine: vLLM serve, SGLang, Ollama, llama.cpp.

Where the server takes token ids and gives back the sampled ids with their log-probs (vLLM does), a turn is as exact as
that of an engine of our own. Elsewhere text goes out and text comes back: it is encoded again, its log-probs are NaN,
and the generation says `exact=False`, by which the trajectory is unfit for training.

With `api="chat"` the server renders the conversation, and tool schemas and calls travel in the protocol's own fields.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentfly_lib.chat.protocol import ServedFormat, protocol_messages, reply_text
from agentfly_lib.configs.inference import OpenAIConfig
from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference.checks import check_request
from agentfly_lib.inference.endpoint import Endpoint, EndpointRefused, EndpointUnavailable
from agentfly_lib.inference.generate import Delta, Generation, GenerationRequest
from agentfly_lib.inference.openai_stream import StreamedAnswer
from agentfly_lib.types import FinishReason

__all__ = ["OpenAIEngine"]

logger = logging.getLogger(__name__)

_FINISH = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}
_Post = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Of a path and a body: the server's answer, whole."""

_REQUEST_FAULTS = frozenset({400, 413, 422})
_MAX_STOPS = 4
"""Stop texts that the protocol allows."""
_NOT_IN_THE_PROTOCOL = ("repetition_penalty", "min_tokens", "stop")
"""Servers ignore what they do not know; and which of several texts ended a reply, without it, is not said."""
_SMALL_SEED = 2**31
"""Servers that are not known to take larger ones get a seed below this."""


class OpenAIEngine:
    """A `GenerateStream` for any event loop. Nothing is asked of the server before the first request."""

    def __init__(
        self,
        config: OpenAIConfig,
        *,
        model: str,
        format: ServedFormat,
        backoff_seconds: float = 0.5,
    ) -> None:
        """Take the `model`'s name where the config has none, and the `format` in which it reads and writes."""
        self.config = config
        self._model = config.model or model
        self._format = format
        stops = [format.decode([stop], end_of_turn=True) for stop in format.stop_token_ids]
        self._stop_texts = list(filter(None, stops))[:_MAX_STOPS]
        self._takes_ids: bool | None = {"auto": None, "ids": True, "text": False}[config.tokens]
        self._endpoint = Endpoint(
            base_url=config.base_url,
            api_key_env=config.api_key_env,
            max_connections=config.max_connections,
            connect_timeout_seconds=config.connect_timeout_seconds,
            retries=config.retries,
            backoff_seconds=backoff_seconds,
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`. Raises `EngineError` too, where no request can succeed: no such model, no access."""
        return await self._generate(request, self._post)

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """See `GenerateStream.generate_stream`; tokens where the server gives them, else text.

        What breaks before the first token is tried again; later it is an `InfrastructureError`.
        """

        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            prompt = body.get("prompt")
            answer = StreamedAnswer(on_delta, sent_ids=prompt if isinstance(prompt, list) else None)
            body = {**body, "stream": True, "stream_options": {"include_usage": True}, **self.config.extra}
            await self._endpoint.stream(path, body, answer.add, seconds=self.config.request_timeout_seconds)
            if answer.broken_off:
                raise EndpointUnavailable(f"{self.config.base_url} ended its answer without a reason to")
            return answer.whole()

        return await self._generate(request, post)

    async def _generate(self, request: GenerationRequest, post: _Post) -> Generation:
        check_request(request)
        if request.images and self.config.api != "chat":
            raise ValueError(f"request {request.request_id!r} shows pictures, which only api='chat' can send")
        started = time.perf_counter()
        answer, ids_sent = await self._ask(request, post)
        try:
            return self._read(request, answer, ids_sent=ids_sent, seconds=time.perf_counter() - started)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InfrastructureError(
                f"{self.config.base_url} gave request {request.request_id!r} an answer that is not a completion: "
                f"{type(error).__name__}: {error}",
                where="generate",
            ) from error

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._endpoint.close()

    async def _ask(self, request: GenerationRequest, post: _Post) -> tuple[dict[str, Any], bool]:
        """The answer, and whether the prompt was sent as token ids."""
        try:
            if self.config.api == "chat":
                return await post("chat/completions", self._chat_body(request)), False
            if self._takes_ids is False:
                return await post("completions", self._text_body(request)), False
            try:
                answer = await post("completions", self._ids_body(request))
            except EndpointRefused as refusal:
                if self._takes_ids or refusal.status not in _REQUEST_FAULTS:
                    raise
                answer = await self._as_text(request, post, refusal)
                self._takes_ids = False  # it was the ids: as text it went through
                logger.warning("%s takes no token ids, so its turns cannot be trained on: %s", self._model, refusal)
                return answer, False
            self._takes_ids = True
            return answer, True
        except EndpointUnavailable as error:
            raise InfrastructureError(f"request {request.request_id!r}: {error}", where="generate") from error
        except EndpointRefused as error:
            if error.status in _REQUEST_FAULTS:
                raise ValueError(f"request {request.request_id!r}: {error}") from error
            raise EngineError(f"the server cannot be used: {error}") from error

    async def _as_text(self, request: GenerationRequest, post: _Post, refusal: EndpointRefused) -> dict[str, Any]:
        try:
            return await post("completions", self._text_body(request))
        except EndpointRefused as error:
            raise EndpointRefused(f"{error}; to token ids: {refusal}", status=error.status) from refusal

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        seconds = self.config.request_timeout_seconds
        return await self._endpoint.post(path, {**body, **self.config.extra}, seconds=seconds)

    def _common(self, request: GenerationRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if request.greedy else sampling.temperature,
            "top_p": 1.0 if request.greedy else sampling.top_p,
        }
        if not request.greedy:
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
            body |= {"min_p": sampling.min_p} if sampling.min_p else {}
            body |= {"seed": request.seed % _SMALL_SEED} if request.seed is not None else {}
        body |= {"presence_penalty": sampling.presence_penalty} if sampling.presence_penalty else {}
        body |= {"frequency_penalty": sampling.frequency_penalty} if sampling.frequency_penalty else {}
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
        return body

    def _protocol_body(self, request: GenerationRequest) -> dict[str, Any]:
        """What every server of the protocol takes. Raises `ValueError` for what only vLLM's takes, with token ids."""
        for name in _NOT_IN_THE_PROTOCOL:
            if name in request.sampling.model_fields_set and name in request.sampling.model_dump(exclude_defaults=True):
                raise ValueError(
                    f"request {request.request_id!r} asks for {name}, which {self.config.base_url} cannot be told "
                    "exactly: use api='completions' and a server that takes token ids (tokens='ids')"
                )
        return self._common(request)

    def _ids_body(self, request: GenerationRequest) -> dict[str, Any]:
        """In vLLM's words, its defaults by the model's `generation_config.json` overridden."""
        body = self._common(request) | {
            "prompt": list(request.token_ids),
            "stop_token_ids": list(request.stop_token_ids),
            "top_k": 0 if request.greedy else request.sampling.top_k,
            "min_p": 0.0 if request.greedy else request.sampling.min_p,
            "repetition_penalty": request.sampling.repetition_penalty,
            "min_tokens": min(request.sampling.min_tokens, request.max_tokens),
            "logprobs": 0,
            "return_token_ids": True,
        }
        if request.sampling.stop:
            body |= {
                "stop": list(request.sampling.stop),
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
            }
        if request.seed is not None and not request.greedy:
            body["seed"] = request.seed
        return body

    def _text_body(self, request: GenerationRequest) -> dict[str, Any]:
        body = self._protocol_body(request) | {"prompt": self._format.decode(request.token_ids)}
        return body | ({"stop": self._stop_texts} if self._stop_texts else {})

    def _chat_body(self, request: GenerationRequest) -> dict[str, Any]:
        if not request.messages:
            raise ValueError(f"request {request.request_id!r} names no messages, which api='chat' needs")
        messages = protocol_messages(request.messages, request.tools, self._format, request.images)
        body = self._protocol_body(request) | {"messages": messages}
        return body | ({"tools": [dict(tool) for tool in request.tools]} if request.tools else {})

    def _read(
        self, request: GenerationRequest, answer: Mapping[str, Any], *, ids_sent: bool, seconds: float
    ) -> Generation:
        choice = answer["choices"][0]
        finish = _FINISH.get(choice["finish_reason"], FinishReason.ABORT)
        usage = answer.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        ids = _sampled_ids(request, choice, ids_sent=ids_sent)
        logprobs = self._sampled_logprobs(request, choice, ids) if ids is not None else None
        if ids is None:
            ids = self._format.encode(self._text(request, choice))
            ids += request.stop_token_ids[:1] if finish is FinishReason.STOP else ()
        return Generation(
            token_ids=ids,
            logprobs=[math.nan] * len(ids) if logprobs is None else logprobs,
            finish=finish,
            policy_version=0,
            cached_tokens=int(cached),
            seconds=seconds,
            exact=logprobs is not None,
        )

    def _text(self, request: GenerationRequest, choice: Mapping[str, Any]) -> str:
        if self.config.api == "chat":
            return reply_text(choice["message"], request.messages, request.tools, self._format)
        return str(choice["text"])

    def _sampled_logprobs(
        self, request: GenerationRequest, choice: Mapping[str, Any], ids: Sequence[int]
    ) -> list[float] | None:
        """One finite number for each id, of the distribution that was sampled."""
        sampling = request.sampling
        plain = not sampling.reshapes and (request.greedy or (sampling.temperature == 1 and not sampling.truncates))
        values = (choice.get("logprobs") or {}).get("token_logprobs")
        if not (plain or self.config.processed_logprobs) or not isinstance(values, list) or len(values) != len(ids):
            return None
        known = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
        return [float(value) for value in values] if known else None


def _sampled_ids(request: GenerationRequest, choice: Mapping[str, Any], *, ids_sent: bool) -> list[int] | None:
    """The ids that were sampled behind exactly our prompt, if the server says so."""
    ids, prompt = choice.get("token_ids"), choice.get("prompt_token_ids")
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        return None
    ours = ids_sent if prompt is None else prompt == list(request.token_ids)
    return ids if ours else None
