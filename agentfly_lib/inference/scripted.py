"""A policy whose every reply is written down: rollouts become testable in milliseconds, without a model.

`ScriptedGenerate` asks its script for the reply to each request. The script is a function of the request, a list used
in order of arrival, or a mapping from a piece of the decoded prompt to the reply. A reply is text, token ids, or an
exception to raise. The outcome depends on the request alone (and, for a list, on the order of arrival): never on time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol

from agentfly_lib.inference.checks import check_request
from agentfly_lib.inference.generate import Delta, Generation, GenerationRequest
from agentfly_lib.inference.stop_strings import stops_of
from agentfly_lib.types import FinishReason

__all__ = ["Reply", "Script", "ScriptedGenerate", "TextFormat"]

Reply = str | Sequence[int] | Exception
"""Text (encoded with the format, the end-of-turn token added), token ids (taken as they are), or what to raise."""

Script = Callable[[GenerationRequest], Reply] | Sequence[Reply] | Mapping[str, Reply]
"""A function of the request, replies in order of arrival, or `{piece of the prompt's text: reply}`, of which the piece
that occurs last in the prompt decides."""


class TextFormat(Protocol):
    """What turns text into token ids and back. A `ChatFormat` is one."""

    def encode(self, text: str, /) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int], /) -> str: ...


class ScriptedGenerate:
    """A `GenerateStream` that answers from a script.

    Token ids, log-probs and finish reasons obey the rules of a real engine: a reply is cut at `max_tokens`
    (`FinishReason.LENGTH`) and at its first stop token or text, which is kept (`FinishReason.STOP`). A reply given as
    text ends with the request's first stop token. Token ids without a stop token end with `STOP` too, as if the engine
    had a stop rule of its own. Log-probs are negative numbers derived from the tokens before and the token itself, so a
    test can tell whether each one stayed with its token. What shapes the distribution (temperature, penalties) is for a
    real policy; a script is what it is.
    """

    def __init__(
        self,
        script: Script,
        *,
        format: TextFormat | None = None,
        delay: Callable[[GenerationRequest], Awaitable[object]] | None = None,
        policy_version: int = 0,
    ) -> None:
        """Take a `script` and, for text in it, the `format` that encodes.

        `delay` is awaited before the reply is given: an event, a barrier, a fake clock. `policy_version` stamps every
        generation and may be changed at any time.
        """
        self.policy_version = policy_version
        self.requests: list[GenerationRequest] = []
        """Every request, in order of arrival."""
        self.cancelled: list[str] = []
        """Ids of the requests that were cancelled while they waited."""
        self.in_flight = 0
        self.max_in_flight = 0
        """Largest number of requests that were waiting at the same time."""
        self._format = format
        self._delay = delay
        self._choose = _chooser(script, format)

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`; raises what the script holds in place of a reply."""
        return await self._answer(request, None)

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """See `GenerateStream.generate_stream`; one token in each turn of the event loop."""
        return await self._answer(request, on_delta)

    async def _answer(self, request: GenerationRequest, on_delta: Callable[[Delta], None] | None) -> Generation:
        check_request(request)
        version = self.policy_version
        self.requests.append(request)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            reply = self._choose(request)
            await (asyncio.sleep(0) if self._delay is None else self._delay(request))
            if isinstance(reply, Exception):
                raise reply
            generation = self._generation(request, self._ids(request, reply), version)
            if on_delta is not None:
                for token in generation.token_ids:
                    on_delta([token])
                    await asyncio.sleep(0)
            return generation
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        finally:
            self.in_flight -= 1

    def _ids(self, request: GenerationRequest, reply: str | Sequence[int]) -> list[int]:
        if not isinstance(reply, str):
            return list(reply)
        if self._format is None:
            raise TypeError("a reply given as text needs a format that encodes it; pass ScriptedGenerate(format=...)")
        return [*self._format.encode(reply), *request.stop_token_ids[:1]]

    def _generation(self, request: GenerationRequest, ids: list[int], policy_version: int) -> Generation:
        decode = None if self._format is None else self._format.decode
        stops, texts = set(request.stop_token_ids), stops_of(request, decode)
        end = next(
            (
                number
                for number, token in enumerate(ids, start=1)
                if token in stops or (texts is not None and texts.push(token))
            ),
            len(ids),
        )
        cut = ids[: min(end, request.max_tokens)]
        return Generation(
            token_ids=cut,
            logprobs=_logprobs(request.token_ids, cut),
            finish=FinishReason.STOP if end <= request.max_tokens else FinishReason.LENGTH,
            policy_version=policy_version,
        )


def _chooser(script: Script, format: TextFormat | None) -> Callable[[GenerationRequest], Reply]:
    if callable(script):
        return script
    if isinstance(script, Mapping):
        return lambda request: _last_mentioned(script, format, request)
    if isinstance(script, str):
        raise TypeError("a script is a function, a list of replies or a mapping; for one reply write [reply]")
    replies = iter(script)
    return lambda request: _next_reply(replies, len(script), request)


def _next_reply(replies: Iterator[Reply], count: int, request: GenerationRequest) -> Reply:
    try:
        return next(replies)
    except StopIteration:
        raise AssertionError(f"the script holds {count} replies; request {request.request_id!r} is one more") from None


def _last_mentioned(script: Mapping[str, Reply], format: TextFormat | None, request: GenerationRequest) -> Reply:
    if format is None:
        raise TypeError(
            "a script by pieces of the prompt needs a format that decodes it; pass ScriptedGenerate(format=...)"
        )
    prompt = format.decode(request.token_ids)
    found = max(script, key=prompt.rfind, default="")
    if not found or prompt.rfind(found) < 0:
        raise AssertionError(f"no piece of the script is in the prompt of request {request.request_id!r}: {prompt!r}")
    return script[found]


def _logprobs(prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """In (-2, 0), one for each of `ids` [S], from a running hash over everything before it and itself."""
    digest, values = hashlib.blake2b(b"".join(token.to_bytes(4, "little") for token in prompt), digest_size=8), []
    for token in ids:
        digest.update(token.to_bytes(4, "little"))
        values.append(-2.0 * (int.from_bytes(digest.digest(), "little") + 1) / (2**64 + 1))
    return values
