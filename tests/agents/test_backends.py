"""`backend_config`: which engine it names, and what is wrong with one that names none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentfly_lib.agents.backend import open_backend
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference.openai import OpenAIEngine
from agentfly_lib.inference.transformers import TransformersEngine

CHAT = SimpleNamespace(stop_token_ids=(1, 2), decode=lambda ids, end_of_turn=False: f"<{ids[0]}>" * end_of_turn)


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
    CHAT.encode = lambda text: [5]
    from agentfly_lib.inference import GenerationRequest

    await engine.generate(GenerationRequest(request_id="r", token_ids=[7], max_tokens=1, stop_token_ids=(1,)))
    assert server.bodies[0]["model"] == "some/model"
    assert server.bodies[0]["stop"] == ["<1>", "<2>"]
    await engine.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backend": "openai", "base_ulr": "http://h"}, "unknown key 'base_ulr': did you mean 'base_url'?"),
        ({"backend": "openai", "base_url": "localhost"}, "base_url = 'localhost' is no address"),
        ({"backend": "openai", "api": "responses"}, "api = 'responses'"),
        ({"backend": "transformers", "dtypes": "float32"}, "unknown key 'dtypes': did you mean 'dtype'?"),
        ({"backend": "transformers", "replicas": 2}, "unknown key 'replicas'"),
        ({"backend": "transformers", "max_sequences": 0}, "max_sequences = 0"),
        ({"backend": "tgi"}, "unknown backend 'tgi'; there are: async_vllm, vllm, transformers, openai, scripted"),
        ({"backend": "scripted", "base_url": "http://h"}, "'script' and 'context_length' only"),
    ],
)
def test_what_cannot_be_says_what_could(config, message):
    with pytest.raises(ConfigError) as caught:
        opened(**config)
    assert message in str(caught.value)
