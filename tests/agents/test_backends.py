"""`backend_config`: which engine it names, and what is wrong with one that names none."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from types import SimpleNamespace

import pytest

from agentfly_lib.agents import HFAgent
from agentfly_lib.agents.backend import open_backend
from agentfly_lib.errors import ConfigError, EngineError
from agentfly_lib.inference import GenerationRequest
from agentfly_lib.inference.openai import OpenAIEngine
from agentfly_lib.inference.transformers import TransformersEngine

CHAT = SimpleNamespace(
    stop_token_ids=(1, 2),
    decode=lambda ids, end_of_turn=False: f"<{ids[0]}>" * end_of_turn,
    encode=lambda text: [5],
)


def opened(**config):
    return open_backend(config, model="some/model", chat=CHAT)


def test_transformers():
    engine, context_length = opened(backend="transformers", dtype="bfloat16", max_num_seqs=4, max_model_len=100)
    assert isinstance(engine, TransformersEngine)
    assert (context_length, engine.context_length) == (100, 100)
    assert (engine.config.dtype, engine.config.max_sequences) == ("bfloat16", 4)


async def test_openai(fake_server):
    server = await fake_server(lambda path, body: {"choices": [{"text": "x", "finish_reason": "stop"}]})
    engine, context_length = opened(backend="openai", base_url=server.url, tokens="text")
    assert isinstance(engine, OpenAIEngine)
    assert context_length == 4096
    await engine.generate(GenerationRequest(request_id="r", token_ids=[7], max_tokens=1, stop_token_ids=(1,)))
    assert server.bodies[0]["model"] == "some/model"
    assert server.bodies[0]["stop"] == ["<1>", "<2>"]
    await engine.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backend": "openai", "base_ulr": "http://h"}, "unknown key backend_config.base_ulr: did you mean base_url?"),
        ({"backend": "openai", "base_url": "localhost"}, "base_url = 'localhost' is not an address"),
        ({"backend": "openai", "api": "responses"}, "api = 'responses'"),
        ({"backend": "transformers", "dtypes": "float32"}, "unknown key backend_config.dtypes: did you mean dtype?"),
        ({"backend": "transformers", "replicas": 2}, "unknown key backend_config.replicas"),
        ({"backend": "async_vllm", "replicas": 2}, "unknown key backend_config.replicas"),  # it is one engine
        ({"canary_tolerance": 1.0}, "unknown key backend_config.canary_tolerance"),  # its weights stay as they are
        ({"backend": "transformers", "max_sequences": 0}, "max_sequences = 0"),
        ({"backend": "tgi"}, "unknown backend 'tgi'; there are: async_vllm, vllm, transformers, openai, scripted"),
        ({"backend": "scripted", "base_url": "http://h"}, "'script' and 'context_length' only"),
    ],
)
def test_what_cannot_be_says_what_could(config, message):
    with pytest.raises(ConfigError) as caught:
        opened(**config)
    assert message in str(caught.value)


@pytest.mark.stack
async def test_closing_while_the_engine_starts_ends_it(model_path, monkeypatch):
    pytest.importorskip("torch")
    from agentfly_lib.inference.vllm import VllmEngine

    building, built, ended = threading.Event(), threading.Event(), threading.Event()
    started: list[VllmEngine] = []

    def build(self):
        started.append(self)
        building.set()
        built.wait(20)
        core = SimpleNamespace(shutdown=ended.set)
        return SimpleNamespace(engine_core=core, has_unfinished_requests=lambda: False)

    monkeypatch.setattr(VllmEngine, "_build", build)
    engine, _ = open_backend({"device": "cpu"}, model=model_path, chat=CHAT)
    asked = asyncio.ensure_future(engine.generate(GenerationRequest(request_id="r", token_ids=[7], max_tokens=1)))
    assert await asyncio.to_thread(building.wait, 20)
    closing = asyncio.ensure_future(engine.close())
    async with asyncio.timeout(20):
        while started[0].error is None:  # it was told to end
            await asyncio.sleep(0.001)
    built.set()
    await closing
    assert ended.is_set()
    with pytest.raises(EngineError, match="closed while it started"):
        await asked


CALL = {"name": "calculator", "arguments": {"expression": "1 + 1"}}


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_an_agent_on_a_server_of_text_acts_and_is_marked_unfit_for_training(model_path, fake_server, api):
    def answer(path, body):
        first = len(server.requests) == 1
        if path == "completions":
            text = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>" if first else "It is 2."
            return {"choices": [{"text": text, "finish_reason": "stop"}]}
        function = {"name": "calculator", "arguments": json.dumps(CALL["arguments"])}
        message = {"content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}
        return {"choices": [{"message": message if first else {"content": "It is 2."}, "finish_reason": "stop"}]}

    server = await fake_server(answer)
    config = {"backend": "openai", "base_url": server.url, "api": api, "tokens": "text"}
    async with HFAgent(model_path, tools=["calculator"], backend_config=config) as agent:
        (trajectory,) = (await agent.run("What is 1 + 1?", num_chains=1)).trajectories
    assert trajectory.failure is None
    assert trajectory.final_response == "It is 2."
    assert [message["role"] for message in trajectory.messages] == ["assistant", "tool", "assistant"]
    assert trajectory.messages[1]["content"] == "2"
    assert trajectory.metrics["inexact_turns"] == 2
    assert trajectory.metrics["missing_logprobs"] == trajectory.num_sampled > 0
    if api == "completions":
        assert server.bodies[0]["prompt"].endswith("assistant\n")
        assert server.bodies[0]["stop"] == ["<|im_end|>"]
        assert server.bodies[1]["prompt"].startswith(server.bodies[0]["prompt"])
    else:
        assert server.bodies[0]["tools"][0]["function"]["name"] == "calculator"
        assert [message["role"] for message in server.bodies[1]["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.stack
async def test_an_agent_on_transformers_is_exact(model_path, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path / "model"
    shutil.copytree(model_path, folder)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=320,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=64,
            max_position_embeddings=1024,
        )
    ).float()
    model.save_pretrained(folder)
    config = {"backend": "transformers", "device": "cpu", "max_model_len": 1024}
    async with HFAgent(folder, tools=["calculator"], backend_config=config) as agent:
        options = {"num_chains": 3, "generation_config": {"max_tokens": 12, "temperature": 0.8, "seed": 5}}
        result = await agent.run("What is 1 + 1?", **options)
        again = await agent.run("What is 1 + 1?", **options)
    for trajectory, repeated in zip(result.trajectories, again.trajectories, strict=True):
        assert trajectory.failure is None
        assert trajectory.metrics["inexact_turns"] == 0
        (segment,) = trajectory.segments
        assert segment.token_ids.tolist() == repeated.segments[0].token_ids.tolist()
        ids = torch.tensor([segment.token_ids.tolist()])
        with torch.no_grad():
            expected = torch.log_softmax(model(ids).logits[0, :-1] / 0.8, -1).gather(-1, ids[0, 1:, None])[:, 0]
        sampled = segment.loss_mask
        assert segment.logprobs[sampled] == pytest.approx(expected.numpy()[sampled[1:]], abs=1e-5)
