"""`HFAgent` on vLLM in this process: the README's example with a model of random weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.slow]

SCRIPT = """
import asyncio, sys
from agentfly_lib.agents import HFAgent
from agentfly_lib.tools import calculator

async def streamed(agent, **options):
    config = {"max_tokens": 40, "seed": 5} | options
    events = [event async for event in agent.stream("Say it", generation_config=config)]
    plain = (await agent.run("Say it", generation_config=config)).trajectories[0]
    deltas = [event.text for event in events if event.type == "text_delta"]
    (ended,) = (event for event in events if event.type == "turn_ended")
    told = events[-1].result.trajectories[0]
    assert ended.text == told.final_response == plain.final_response
    assert "".join(deltas) == ended.text.strip()
    assert len(deltas) > 1, deltas
    assert told.segments[0].token_ids.tolist() == plain.segments[0].token_ids.tolist()
    return told

async def main(agent):
    messages = [{"role": "user", "content": "What is the result of 1 + 1?"}]
    result = await agent.run(messages=messages, max_turns=3, num_chains=2, generation_config={"max_tokens": 8})
    assert result.trajectories == agent.trajectories and len(result.rewards) == len(agent.rewards) == 2
    for trajectory in result.trajectories:
        assert trajectory.failure is None, trajectory.failure
        assert 1 <= trajectory.num_sampled <= 8
    told = await streamed(agent)
    text = told.final_response
    mark = next(character for character in text[6:] if character.isascii() and character.isalnum())
    cut = await streamed(agent, stop=mark)
    assert mark in cut.final_response and text.startswith(cut.final_response)

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


def test_the_readmes_example(random_model):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(random_model)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("done")
