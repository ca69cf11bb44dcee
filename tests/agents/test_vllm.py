"""`HFAgent` on vLLM in this process: the README's example with a model of random weights."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.slow]

SCRIPT = """
import asyncio, sys
from agentfly_lib.agents import HFAgent
from agentfly_lib.tools import calculator

async def main(agent):
    messages = [{"role": "user", "content": "What is the result of 1 + 1?"}]
    result = await agent.run(messages=messages, max_turns=3, num_chains=2, generation_config={"max_tokens": 8})
    assert result.trajectories == agent.trajectories and len(result.rewards) == len(agent.rewards) == 2
    for trajectory in result.trajectories:
        assert trajectory.failure is None, trajectory.failure
        assert 1 <= trajectory.num_sampled <= 8

if __name__ == "__main__":
    agent = HFAgent(
        model_name_or_path=sys.argv[1],
        tools=[calculator],
        backend_config={"backend": "async_vllm", "device": "cpu", "max_model_len": 1024},
    )
    asyncio.run(main(agent))
    agent.run_sync("Again, on another event loop", generation_config={"max_tokens": 4})
    asyncio.run(agent.close())
    print("done")
"""


@pytest.fixture(scope="module")
def random_model(model_path, tmp_path_factory) -> Path:
    """The tokenizer's directory, with a very small model in it."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    path = tmp_path_factory.mktemp("random") / "model"
    shutil.copytree(model_path, path)
    config = Qwen2Config(
        vocab_size=len(AutoTokenizer.from_pretrained(path)),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


def test_the_readmes_example(random_model):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(random_model)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("done")
