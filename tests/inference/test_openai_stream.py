"""The `openai` backend's stream: told while it comes, and in the end what the same server gives in one piece."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from agentfly_lib.configs import OpenAIConfig, SamplingConfig
from agentfly_lib.errors import InfrastructureError, ModelError
from agentfly_lib.inference import Generation, GenerationRequest
from agentfly_lib.inference.openai import OpenAIEngine
from agentfly_lib.types import FinishReason

STOP = 3


class Characters:
    """Every character is a token; `3` ends a turn."""

    parser = "hermes"
    stop_token_ids = (STOP,)

    def prompt_ids(self, messages, tools=None) -> list[int]:
        raise ModelError("this template writes no calls")

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids, *, end_of_turn: bool = False) -> str:
        return "".join("<end>" * end_of_turn if token == STOP else chr(token) for token in ids)


def engine(server, **settings) -> OpenAIEngine:
    return OpenAIEngine(
        OpenAIConfig(base_url=server.url, **settings), model="m", format=Characters(), backoff_seconds=0.001
    )


def request(**rest) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        token_ids=Characters().encode("question"),
        max_tokens=16,
        stop_token_ids=(STOP,),
        **rest,
    )


async def sent(chunks: Iterable[Any], *, done: bool = True, size: int = 7) -> AsyncIterator[Any]:
    """Chunks as events, cut into pieces that split them anywhere."""
    data = b"".join(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks)
    data += b"data: [DONE]\n\n" if done else b""
    for start in range(0, len(data), size):
        yield data[start : start + size]
        await asyncio.sleep(0)


def chunk(text="", finish=None, **fields) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **fields}]}


def token(text: str, token_id: int, logprob: float, finish=None, **fields) -> dict[str, Any]:
    return chunk(text, finish, token_ids=[token_id], logprobs={"token_logprobs": [logprob]}, **fields)


USAGE = {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 4}}}
EXACT_CHUNKS = [
    token("o", 111, -1.0, prompt_token_ids=None),
    token("k", 107, -2.0),
    token("", STOP, -0.5, "stop"),
    USAGE,
]
EXACT = {
    "choices": [
        {
            "text": "ok",
            "finish_reason": "stop",
            "token_ids": [111, 107, STOP],
            "logprobs": {"token_logprobs": [-1.0, -2.0, -0.5]},
        }
    ],
    "usage": USAGE["usage"],
}


def both(whole: dict[str, Any], chunks: list[dict[str, Any]]):
    """A server that gives the one answer, whole or in chunks, as it is asked."""
    return lambda path, body: sent(chunks) if body.get("stream") else whole


def assert_same(left: Generation, right: Generation) -> None:
    assert left.token_ids == right.token_ids
    assert left.logprobs == pytest.approx(right.logprobs, nan_ok=True)
    for name in ("finish", "exact", "policy_version", "cached_tokens"):
        assert getattr(left, name) == getattr(right, name)


async def test_ids_and_log_probs(fake_server):
    server = await fake_server(both(EXACT, EXACT_CHUNKS))
    told: list[Any] = []
    made = engine(server)
    streamed = await made.generate_stream(request(), told.append)
    assert told == [[111], [107], [STOP]]
    assert streamed.exact
    assert_same(streamed, await made.generate(request()))
    streaming, plain = server.bodies
    assert streaming == plain | {"stream": True, "stream_options": {"include_usage": True}}


async def test_they_are_told_before_the_end(fake_server):
    told: list[Any] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def pieces():
        async for piece in sent([EXACT_CHUNKS[0]], done=False, size=1000):
            yield piece
        await go_on.wait()
        async for piece in sent(EXACT_CHUNKS[1:]):
            yield piece

    def tell(delta) -> None:
        told.append(delta)
        begun.set()

    task = asyncio.create_task(engine(await fake_server(lambda path, body: pieces())).generate_stream(request(), tell))
    async with asyncio.timeout(30):
        await begun.wait()
        assert (told, task.done()) == ([[111]], False)
        go_on.set()
        assert (await task).token_ids == [111, 107, STOP]


async def test_text_where_the_server_gives_no_ids(fake_server):
    text = "Vier 👩‍👧 四."
    chunks = [*(chunk(character) for character in text), chunk("", "stop")]
    whole = {"choices": [{"text": text, "finish_reason": "stop"}]}
    server = await fake_server(both(whole, chunks))
    made = engine(server, tokens="text")
    told: list[Any] = []
    streamed = await made.generate_stream(request(), told.append)
    assert told == list(text)
    assert not streamed.exact
    assert all(map(math.isnan, streamed.logprobs))
    assert_same(streamed, await made.generate(request()))


async def test_ids_behind_another_prompt_are_told_as_text(fake_server):
    chunks = [token("o", 111, -1.0, prompt_token_ids=[1, 2]), token("k", 107, -2.0, "length")]
    told: list[Any] = []
    generation = await engine(await fake_server(lambda path, body: sent(chunks))).generate_stream(
        request(), told.append
    )
    assert told == ["o", "k"]
    assert (generation.exact, generation.finish) == (False, FinishReason.LENGTH)


async def test_a_chat_with_calls(fake_server):
    def delta(finish=None, **message) -> dict[str, Any]:
        return {"choices": [{"delta": message, "finish_reason": finish}]}

    def piece(index: int, **function) -> dict[str, Any]:
        return {"index": index, "function": function}

    chunks = [
        delta(role="assistant", content=""),
        delta(content="Let me"),
        delta(content=" see. "),
        delta(tool_calls=[piece(0, name="weight", arguments="")]),
        delta(tool_calls=[piece(0, arguments='{"animal"')]),
        delta(tool_calls=[piece(0, arguments=': "cat"}'), piece(1, name="age", arguments="{}")]),
        delta("tool_calls"),
    ]
    calls = [
        {"function": {"name": "weight", "arguments": '{"animal": "cat"}'}},
        {"function": {"name": "age", "arguments": "{}"}},
    ]
    message = {"content": "Let me see. ", "tool_calls": calls}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    made = engine(await fake_server(both(whole, chunks)), api="chat")
    told: list[Any] = []
    messages = [{"role": "user", "content": "u"}]
    streamed = await made.generate_stream(request(messages=messages), told.append)
    assert "".join(told) == "Let me see."
    assert_same(streamed, await made.generate(request(messages=messages)))


async def test_a_server_that_does_not_stream_after_all(fake_server):
    told: list[Any] = []
    generation = await engine(await fake_server(lambda path, body: EXACT)).generate_stream(request(), told.append)
    assert told == [[111, 107, STOP]]
    assert (generation.exact, generation.cached_tokens) == (True, 4)


class TestFaults:
    async def test_what_breaks_before_the_first_token_is_tried_again(self, fake_server):
        answers = [503, sent([{"error": {"message": "overloaded"}}]), b"", sent(EXACT_CHUNKS)]
        server = await fake_server(lambda path, body: answers.pop(0))
        told: list[Any] = []
        assert (await engine(server).generate_stream(request(), told.append)).exact
        assert told == [[111], [107], [STOP]]
        assert len(server.requests) == 4

    async def test_what_breaks_later_is_not(self, fake_server):
        async def broken(end):
            async for piece in sent(EXACT_CHUNKS[:2], done=False):
                yield piece
            if end is not None:
                yield end

        server = await fake_server(lambda path, body: broken(server.HANG_UP))
        told: list[Any] = []
        with pytest.raises(InfrastructureError, match="broke off its answer"):
            await engine(server).generate_stream(request(), told.append)
        assert told[:1] == [[111]]
        server.answer = lambda path, body: broken(b'data: {"error": {"message": "out of memory"}}\n\n')
        with pytest.raises(InfrastructureError, match=r"out of memory.*in the middle of its answer"):
            await engine(server).generate_stream(request(), told.append)
        server.answer = lambda path, body: broken(None)
        with pytest.raises(InfrastructureError, match="ended its answer without a reason"):
            await engine(server).generate_stream(request(), told.append)
        server.answer = lambda path, body: broken(b"data: [1]\n\n")
        with pytest.raises(InfrastructureError, match="something other than a JSON object"):
            await engine(server).generate_stream(request(), told.append)
        assert len(server.requests) == 4

    @pytest.mark.parametrize(
        "strange",
        [
            {"choices": {"a": 1}},
            {"choices": [7]},
            {"choices": [{"delta": {"tool_calls": [{"index": 5}]}}]},
            {"choices": [{"delta": {"tool_calls": [7]}}]},
            {"choices": [{"text": "x", "logprobs": 7}]},
        ],
    )
    async def test_chunks_that_are_none(self, fake_server, strange):
        server = await fake_server(lambda path, body: sent([strange]))
        with pytest.raises(InfrastructureError, match="request 'r': a chunk of the answer"):
            await engine(server).generate_stream(request(), lambda delta: None)

    async def test_cancelling_in_the_middle_hangs_up(self, fake_server):
        begun = asyncio.Event()

        async def endless():
            while True:
                async for piece in sent([EXACT_CHUNKS[0]], done=False):
                    yield piece

        server = await fake_server(lambda path, body: endless())
        task = asyncio.create_task(engine(server).generate_stream(request(), lambda delta: begun.set()))
        async with asyncio.timeout(30):
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.hung_up.wait()

    async def test_what_the_listener_raises_is_raised(self, fake_server):
        def broken(delta):
            raise ZeroDivisionError("the listener")

        server = await fake_server(lambda path, body: sent(EXACT_CHUNKS))
        with pytest.raises(ZeroDivisionError, match="the listener"):
            await engine(server).generate_stream(request(), broken)
        assert len(server.requests) == 1


PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {7: 2.0}}


class TestSampling:
    async def test_with_ids_everything_is_sent_in_vllms_words(self, fake_server):
        server = await fake_server(lambda path, body: EXACT)
        sampling = SamplingConfig(repetition_penalty=1.2, min_tokens=99, stop=("x", "y"), **PENALTIES)
        generation = await engine(server).generate(request(sampling=sampling))
        (body,) = server.bodies
        assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, -0.5)
        assert (body["repetition_penalty"], body["min_tokens"]) == (1.2, 16)
        assert (body["logit_bias"], body["stop"]) == ({"7": 2.0}, ["x", "y"])
        assert (body["include_stop_str_in_output"], body["skip_special_tokens"]) == (True, False)
        assert not generation.exact, "log-probs before penalties are not those of what was sampled"
        assert (await engine(server, processed_logprobs=True).generate(request(sampling=sampling))).exact

    @pytest.mark.parametrize("settings", [{"tokens": "text"}, {"api": "chat"}])
    async def test_without_ids_what_the_protocol_has_is_sent(self, fake_server, settings):
        whole = {"choices": [{"text": "ok", "message": {"content": "ok"}, "finish_reason": "stop"}]}
        server = await fake_server(lambda path, body: whole)
        messages = [{"role": "user", "content": "u"}]
        await engine(server, **settings).generate(request(sampling=SamplingConfig(**PENALTIES), messages=messages))
        (body,) = server.bodies
        assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, -0.5)
        assert body["logit_bias"] == {"7": 2.0}

    @pytest.mark.parametrize("settings", [{"tokens": "text"}, {"api": "chat"}])
    @pytest.mark.parametrize("sampling", [{"repetition_penalty": 1.1}, {"min_tokens": 2}, {"stop": ("x",)}])
    async def test_without_ids_the_rest_is_refused_by_name(self, fake_server, settings, sampling):
        server = await fake_server(lambda path, body: EXACT)
        (name,) = sampling
        messages = [{"role": "user", "content": "u"}]
        with pytest.raises(ValueError, match=f"request 'r' asks for {name}, which .* cannot be told exactly"):
            await engine(server, **settings).generate(request(sampling=SamplingConfig(**sampling), messages=messages))
        assert server.requests == []
