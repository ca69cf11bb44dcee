"""Runs in the peer's own environment: verl's agent loop worker over a client that answers at once, without HTTP.

As verl's trainer runs it: `AgentLoopWorker.generate_sequences` over its tool agent loop, its own default configuration
but for the lengths to which it pads, which are as short as they may be. No reward is computed.

python verl_loop.py MODEL REPLIES.json   answers each number of chains with CPU seconds, see turns.py
"""

import asyncio
import json
import logging
import sys
from pathlib import Path

import numpy as np
import turns
import verl
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop  # noqa: F401 - registers itself
from verl.protocol import DataProto
from verl.tools.function_tool import function_tool, get_function_tool
from verl.workers.rollout.replica import TokenOutput

model = sys.argv[1]
replies = json.loads(Path(sys.argv[2]).read_text())
logging.disable(logging.WARNING)


@function_tool
async def calculator(expression: str) -> str:
    """Calculates.

    Args:
        expression: What to calculate.
    """
    return "84"


class Client:
    """What `LLMServerClient` is to the loop: each request's next reply."""

    def __init__(self) -> None:
        self.calls = 0
        self._turns: dict[str, int] = {}

    async def generate(self, request_id: str, **_: object) -> TokenOutput:
        self.calls += 1
        turn = self._turns[request_id] = self._turns.get(request_id, -1) + 1
        ids = replies[turn]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


async def rollouts(worker: AgentLoopWorker, client: Client, count: int) -> int:
    prompts = [[{"role": "user", "content": f"What is 12 * 7, {number // 8}?"}] for number in range(count)]
    raw = np.empty(count, dtype=object)
    raw[:] = prompts
    batch = DataProto(
        non_tensor_batch={"raw_prompt": raw, "agent_name": np.array(["tool_agent"] * count, dtype=object)}
    )
    before = client.calls
    done = await worker.generate_sequences(batch)
    if len(done) != count:
        raise RuntimeError(f"{len(done)} of {count} rollouts came back")
    return client.calls - before


config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
config.actor_rollout_ref.model.path = model
rollout = config.actor_rollout_ref.rollout
rollout.name, rollout.tensor_model_parallel_size = "vllm", 1
rollout.prompt_length, rollout.response_length = 320, 256
rollout.multi_turn.enable = True


async def main() -> None:
    client = Client()
    worker = AgentLoopWorker(config, client)
    worker.tools = [get_function_tool("calculator")]
    await turns.turns(lambda count: rollouts(worker, client, count))


asyncio.run(main())
