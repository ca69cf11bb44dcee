"""The `openai` backend against servers of every kind, real sockets included, and against vLLM's own server."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import socket
import subprocess
import sys
from typing import Any

import pytest

from agentfly_lib.chat import PictureBook
from agentfly_lib.configs import OpenAIConfig, SamplingConfig
from agentfly_lib.errors import EngineError, InfrastructureError, ModelError
from agentfly_lib.inference import GenerationRequest
from agentfly_lib.inference.openai import OpenAIEngine
from agentfly_lib.types import FinishReason
from tests.chat.vision_models import png

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
    config = OpenAIConfig(base_url=server.url, **settings)
    return OpenAIEngine(config, model="m", format=Characters(), backoff_seconds=0.001)


def request(text="question", *, max_tokens=16, temperature=1.0, **rest) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        token_ids=Characters().encode(text),
        max_tokens=max_tokens,
        sampling=SamplingConfig(temperature=temperature),
        stop_token_ids=(STOP,),
        **rest,
    )


def completion(text="ok", finish="stop", **fields) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **fields}]}


def exact(ids=(111, 107, STOP), logprobs=(-1.0, -2.0, -0.5), **fields) -> dict[str, Any]:
    return completion(token_ids=list(ids), logprobs={"token_logprobs": list(logprobs)}, **fields)


class TestExact:
    """vLLM and whoever answers as it does."""

    async def test_ids_go_out_and_come_back(self, fake_server):
        usage = {"usage": {"prompt_tokens_details": {"cached_tokens": 4}}}
        server = await fake_server(lambda path, body: exact(prompt_token_ids=body["prompt"]) | usage)
        generation = await engine(server).generate(request(seed=2**61))
        assert generation.token_ids == [111, 107, STOP]
        assert generation.logprobs == [-1.0, -2.0, -0.5]
        assert (generation.finish, generation.exact) == (FinishReason.STOP, True)
        assert (generation.policy_version, generation.cached_tokens) == (0, 4)
        ((path, body),) = server.requests
        assert path == "completions"
        assert body["prompt"] == Characters().encode("question")
        assert body["stop_token_ids"] == [STOP]
        assert (body["seed"], body["model"], body["max_tokens"]) == (2**61, "m", 16)
        assert body["repetition_penalty"] == 1.0  # whatever the model's generation_config says

    async def test_greedy(self, fake_server):
        server = await fake_server(lambda path, body: exact())
        generation = await engine(server).generate(request(temperature=0.3, greedy=True, seed=5))
        assert generation.exact  # log-probs of the unscaled distribution, as a greedy request asks for
        assert server.bodies[0]["temperature"] == 0
        assert "seed" not in server.bodies[0]

    async def test_raw_log_probs_of_another_temperature_are_not_those_of_what_was_sampled(self, fake_server):
        server = await fake_server(lambda path, body: exact())
        raw = await engine(server).generate(request(temperature=0.5))
        processed = await engine(server, processed_logprobs=True).generate(request(temperature=0.5))
        assert not raw.exact
        assert raw.token_ids == [111, 107, STOP]
        assert all(map(math.isnan, raw.logprobs))
        assert (processed.exact, processed.logprobs) == (True, [-1.0, -2.0, -0.5])

    @pytest.mark.parametrize(
        "answer",
        [
            exact(logprobs=(-1.0, -2.0)),
            exact(logprobs=(-1.0, None, -2.0)),
            exact() | {"choices": [exact()["choices"][0] | {"logprobs": None}]},
        ],
    )
    async def test_log_probs_that_do_not_fit_are_not_used(self, fake_server, answer):
        generation = await engine(await fake_server(lambda path, body: answer)).generate(request())
        assert generation.token_ids == [111, 107, STOP]
        assert len(generation.logprobs) == 3
        assert all(map(math.isnan, generation.logprobs))
        assert not generation.exact

    async def test_another_prompt_than_ours_makes_the_turn_inexact(self, fake_server):
        server = await fake_server(lambda path, body: exact(prompt_token_ids=[1, *body["prompt"]]))
        assert not (await engine(server).generate(request())).exact

    async def test_length_and_abort(self, fake_server):
        server = await fake_server(lambda path, body: exact(finish="length"))
        assert (await engine(server).generate(request())).finish is FinishReason.LENGTH
        server.answer = lambda path, body: exact(finish="abort")
        assert (await engine(server).generate(request())).finish is FinishReason.ABORT


class TestText:
    async def test_text_comes_back_encoded_and_marked(self, fake_server):
        server = await fake_server(lambda path, body: completion("ok"))
        generation = await engine(server, tokens="text").generate(request(seed=2**61 + 5))
        assert generation.token_ids == [111, 107, STOP]
        assert all(map(math.isnan, generation.logprobs))
        assert not generation.exact
        (body,) = server.bodies
        assert (body["prompt"], body["stop"]) == ("question", ["<end>"])
        assert body["seed"] == 5
        assert body.keys() == {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"}

    async def test_what_was_cut_gets_no_end(self, fake_server):
        server = await fake_server(lambda path, body: completion("ok", finish="length"))
        generation = await engine(server, tokens="text").generate(request())
        assert (generation.token_ids, generation.finish) == ([111, 107], FinishReason.LENGTH)

    async def test_a_server_that_refuses_ids_gets_text_from_then_on(self, fake_server, caplog):
        server = await fake_server(lambda path, body: completion() if isinstance(body["prompt"], str) else 400)
        made = engine(server)
        for _ in range(2):
            assert not (await made.generate(request())).exact
        assert [type(body["prompt"]) for body in server.bodies] == [list, str, str]
        assert "takes no token ids" in caplog.text

    async def test_a_request_that_is_refused_either_way_proves_nothing(self, fake_server):
        server = await fake_server(lambda path, body: 400 if body["max_tokens"] > 99 else exact())
        made = engine(server)
        with pytest.raises(ValueError, match=r"request 'r': .* answered 400: .*; to token ids: .* answered 400"):
            await made.generate(request(max_tokens=100))
        assert (await made.generate(request())).exact

    async def test_where_ids_are_asked_for_there_is_no_way_back(self, fake_server):
        server = await fake_server(lambda path, body: 422)
        with pytest.raises(ValueError, match="answered 422"):
            await engine(server, tokens="ids").generate(request())
        assert len(server.requests) == 1

    async def test_further_fields(self, fake_server):
        server = await fake_server(lambda path, body: completion())
        await engine(server, tokens="text", extra={"add_special_tokens": False}, model="other").generate(request())
        assert (server.bodies[0]["add_special_tokens"], server.bodies[0]["model"]) == (False, "other")


WEIGHT = {"type": "function", "function": {"name": "weight", "parameters": {"type": "object"}}}


def chat_reply(content: str | None, *calls: tuple[str, str]) -> dict[str, Any]:
    tool_calls = [
        {"id": f"x{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    return {"choices": [{"message": message, "finish_reason": "tool_calls" if calls else "stop"}]}


class TestChat:
    async def test_a_reply_in_words(self, fake_server):
        server = await fake_server(lambda path, body: chat_reply("4 kg"))
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
        generation = await engine(server, api="chat").generate(request(messages=messages))
        assert Characters().decode(generation.token_ids) == "4 kg"
        assert (generation.token_ids[-1], generation.exact) == (STOP, False)
        ((path, body),) = server.requests
        assert (path, body["messages"]) == ("chat/completions", messages)
        assert "tools" not in body

    async def test_pictures_are_sent_as_the_protocol_has_them(self, fake_server):
        server = await fake_server(lambda path, body: chat_reply("red"))
        (message,), _ = PictureBook().take([{"role": "user", "content": [{"type": "image", "image": png(8, 8)}]}])
        await engine(server, api="chat").generate(request(messages=[message], images=(png(8, 8),)))
        ((part,),) = (sent["content"] for sent in server.bodies[0]["messages"])
        assert part["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
        with pytest.raises(ValueError, match="which only api='chat' can send"):
            await engine(server).generate(request(messages=[message], images=(png(8, 8),)))
        with pytest.raises(ValueError, match="which the request does not have"):
            await engine(server, api="chat").generate(request(messages=[message]))

    async def test_calls_that_the_template_cannot_write_are_hermes_blocks(self, fake_server):
        from agentfly_lib.chat import HermesParser

        server = await fake_server(
            lambda path, body: chat_reply("Let me see.", ("weight", '{"animal": "cat \\"x\\""}'), ("weight", "oops"))
        )
        messages = [{"role": "user", "content": "u"}]
        generation = await engine(server, api="chat").generate(request(messages=messages, tools=[WEIGHT]))
        reply = HermesParser().parse(Characters().decode(generation.token_ids))
        assert reply.content == "Let me see."
        good, bad = reply.calls
        assert (good.name, good.arguments) == ("weight", {"animal": 'cat "x"'})
        assert "not valid JSON" in bad.message
        assert server.bodies[0]["tools"] == [WEIGHT]

    async def test_the_conversation_goes_back_in_the_protocols_own_fields(self, fake_server):
        server = await fake_server(lambda path, body: chat_reply("done"))
        call = '<tool_call>\n{"name": "weight", "arguments": {"animal": "cat"}}\n</tool_call>'
        messages = [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": f"Hm. {call}"},
            {"role": "tool", "tool_call_id": "call-0", "name": "weight", "content": "4 kg"},
            {"role": "assistant", "content": call},
            {"role": "tool", "tool_call_id": "call-0", "name": "weight", "content": "4 kg"},
            {"role": "assistant", "content": "4 kg."},
            {"role": "user", "content": "Sure?"},
        ]
        await engine(server, api="chat").generate(request(messages=messages, tools=[WEIGHT]))
        function = {"name": "weight", "arguments": '{"animal": "cat"}'}
        sent = server.bodies[0]["messages"]
        assert sent[1] == {
            "role": "assistant",
            "content": "Hm.",
            "tool_calls": [{"id": "1-call-0", "type": "function", "function": function}],
        }
        assert sent[2] == {"role": "tool", "tool_call_id": "1-call-0", "content": "4 kg"}
        assert sent[3]["tool_calls"][0]["id"] == sent[4]["tool_call_id"] == "2-call-0"
        assert sent[5:] == messages[5:]

    async def test_an_agent_with_a_format_of_its_own_is_sent_as_it_speaks(self, fake_server):
        server = await fake_server(lambda path, body: chat_reply("done"))
        messages = [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "Action: weight <tool_call>x</tool_call>"},
            {"role": "tool", "tool_call_id": "call-0", "content": "Observation: 4 kg"},
        ]
        await engine(server, api="chat").generate(request(messages=messages))
        assert server.bodies[0]["messages"] == [*messages[:2], {"role": "user", "content": "Observation: 4 kg"}]

    async def test_a_request_without_messages(self, fake_server):
        server = await fake_server(lambda path, body: chat_reply("x"))
        with pytest.raises(ValueError, match="names no messages"):
            await engine(server, api="chat").generate(request())


class TestFaults:
    async def test_an_outage_that_passes(self, fake_server):
        server = await fake_server(lambda path, body: exact() if len(server.requests) > 2 else 503)
        assert (await engine(server).generate(request())).exact

    async def test_an_outage_that_does_not(self, fake_server):
        server = await fake_server(lambda path, body: server.HANG_UP)
        with pytest.raises(InfrastructureError, match=r"request 'r': .*try 2 of 2") as caught:
            await engine(server, retries=1).generate(request())
        assert caught.value.where == "generate"

    async def test_a_slow_server(self, fake_server):
        server = await fake_server(lambda path, body: asyncio.Event().wait())
        with pytest.raises(InfrastructureError, match=r"no answer within 0\.05 s"):
            await engine(server, request_timeout_seconds=0.05).generate(request())

    @pytest.mark.parametrize("status", [401, 403, 404])
    async def test_what_no_request_can_mend(self, fake_server, status):
        server = await fake_server(lambda path, body: status)
        with pytest.raises(EngineError, match=f"the server cannot be used: .*{status}"):
            await engine(server).generate(request())

    @pytest.mark.parametrize(
        "answer",
        [{}, {"choices": []}, {"choices": {}}, {"choices": [{"text": "x"}]}, {"choices": [{"finish_reason": "stop"}]}],
    )
    async def test_json_that_is_no_completion(self, fake_server, answer):
        server = await fake_server(lambda path, body: answer)
        with pytest.raises(InfrastructureError, match="that is not a completion"):
            await engine(server).generate(request())

    @pytest.mark.parametrize(("text", "max_tokens"), [("", 1), ("p", 0)])
    async def test_requests_that_no_server_could_serve(self, fake_server, text, max_tokens):
        server = await fake_server(lambda path, body: exact())
        with pytest.raises(ValueError, match="request 'r'"):
            await engine(server).generate(request(text, max_tokens=max_tokens))
        assert server.requests == []

    async def test_cancelling_hangs_up(self, fake_server):
        asked = asyncio.Event()

        async def hang(path, body):
            asked.set()
            await asyncio.Event().wait()

        server = await fake_server(hang)
        task = asyncio.create_task(engine(server).generate(request()))
        async with asyncio.timeout(10):
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.hung_up.wait()


@pytest.fixture(scope="module")
def vllm_server(variants, tmp_path_factory):
    """`python -m vllm.entrypoints.openai.api_server` with the small random model and a tokenizer."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(variants["untied"].first, folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(folder), "--served-model-name", "tiny", "--enforce-eager"]
    command += ["--dtype", "float32", "--max-model-len", "512", "--logprobs-mode", "processed_logprobs"]
    command += ["--block-size", "32", "--kv-cache-memory-bytes", str(64 * 2**20), "--max-num-seqs", "16"]
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--disable-log-stats"]
    command += ["--distributed-executor-backend", "uni"]
    environment = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    log = folder / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}/v1", process, log
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


async def _comes_up(url: str, process: subprocess.Popen, log) -> None:
    import aiohttp

    async with asyncio.timeout(200), aiohttp.ClientSession() as session:
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                async with session.get(url.removesuffix("/v1") + "/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.2)


async def _shapes_as_defined(served: OpenAIEngine, folder, logits_of, shaped) -> None:
    sampling = SamplingConfig(
        temperature=0.7,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=-0.25,
        min_tokens=10,
        logit_bias={20: 2.5, 21: -100.0, 22: 2.0},
    )
    stops, asked_ids = (STOP, *range(100, 300)), [11, 12, 20, 57]
    generation = await served.generate(
        GenerationRequest(
            request_id="r", token_ids=asked_ids, max_tokens=24, sampling=sampling, seed=5, stop_token_ids=stops
        )
    )
    ids = generation.token_ids
    assert len(ids) >= 11
    assert generation.exact
    for step, row in enumerate(logits_of(folder, [*asked_ids, *ids])[len(asked_ids) - 1 : -1]):
        expected = shaped(row, sampling, prompt=asked_ids, sampled=ids[:step], stops=stops)
        assert generation.logprobs[step] == pytest.approx(expected[ids[step]], abs=1e-4)


async def _stops_at_texts(served: OpenAIEngine) -> None:
    def asked(**sampling) -> GenerationRequest:
        return GenerationRequest(
            request_id="r", token_ids=[11, 12], max_tokens=40, sampling=SamplingConfig(**sampling), seed=5
        )

    free = await served.generate(asked())
    stopped = await served.generate(asked(stop=(f"w{free.token_ids[20]}",)))
    assert stopped.finish is FinishReason.STOP
    assert stopped.exact
    assert 0 < len(stopped.token_ids) <= 21
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert f"w{stopped.token_ids[-1]}".startswith(f"w{free.token_ids[20]}")


@pytest.mark.release
@pytest.mark.stack
@pytest.mark.slow
async def test_vllms_own_server_is_as_exact_as_an_engine_of_ours(vllm_server, variants, reference, logits_of, shaped):
    import random

    url, process, log = vllm_server
    await _comes_up(url, process, log)
    config = OpenAIConfig(base_url=url, model="tiny", processed_logprobs=True)
    served = OpenAIEngine(config, model="", format=Characters())
    requests = [
        GenerationRequest(
            request_id=str(i),
            token_ids=random.Random(i).choices(range(10, 300), k=10 + i),
            max_tokens=24,
            sampling=SamplingConfig(temperature=0.7),
            seed=2**62 + i,
            stop_token_ids=(STOP, 40 + i),
        )
        for i in range(8)
    ]
    first = await asyncio.gather(*map(served.generate, requests))
    again = await asyncio.gather(*map(served.generate, requests[::-1]))
    for asked, generation, repeated in zip(requests, first, again[::-1], strict=True):
        assert generation.exact
        assert generation.token_ids == repeated.token_ids
        whole = [*asked.token_ids, *generation.token_ids]
        expected = reference(variants["untied"].first, whole, 0.7)[-len(generation.token_ids) :]
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)
        stopped = generation.token_ids[-1] in asked.stop_token_ids
        assert generation.finish is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert not set(generation.token_ids[:-1]) & set(asked.stop_token_ids)
    told: list[list[int]] = [[] for _ in requests]
    streams = (served.generate_stream(asked, told[index].extend) for index, asked in enumerate(requests))
    for generation, streamed, ids in zip(first, await asyncio.gather(*streams), told, strict=True):
        assert ids == streamed.token_ids == generation.token_ids
        assert streamed.logprobs == pytest.approx(generation.logprobs, abs=1e-4)
        assert (streamed.finish, streamed.exact) == (generation.finish, True)
    await _shapes_as_defined(served, variants["untied"].first, logits_of, shaped)
    await _stops_at_texts(served)
    with pytest.raises(ValueError, match="answered 400"):  # the prompt leaves no room in the context
        await served.generate(GenerationRequest(request_id="long", token_ids=[11] * 600, max_tokens=1))
    with pytest.raises(EngineError, match="404"):
        await OpenAIEngine(config.model_copy(update={"model": "other"}), model="", format=Characters()).generate(
            requests[0]
        )
    await served.close()
