"""Runs in the peer's own environment: the rollouts of TRL's asynchronous GRPO worker over a completion server.

python trl_worker.py MODEL PORT   answers each number of chains with CPU seconds, see turns.py
"""

import asyncio
import multiprocessing
import sys

import aiohttp
import turns
from datasets import Dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

model, port = sys.argv[1:]


async def calculator(expression: str) -> str:
    """Calculates.

    Args:
        expression: What to calculate.
    """
    return "84"


def reward(completions: list, **_: object) -> list[float]:
    return [0.0] * len(completions)


async def rollouts(count: int) -> int:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=count)) as worker.session:
        prompts = [[{"role": "user", "content": f"What is 12 * 7, {number // 8}?"}] for number in range(count)]
        ended = await asyncio.gather(
            *(worker._generate_one(prompt, {"calculator": calculator}, [calculator]) for prompt in prompts)
        )
    return sum(sum(message["role"] == "assistant" for message in completion) for completion, *_ in ended)


tokenizer = AutoTokenizer.from_pretrained(model)
worker = _AsyncRolloutLoop(
    model_name=model,
    dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "What is 12 * 7?"}]]}),
    reward_funcs=[reward],
    processing_class=tokenizer,
    eos_token_ids=[tokenizer.eos_token_id],
    rollout_buffer=multiprocessing.Queue(),
    model_version_value=multiprocessing.Value("i", 0),
    heartbeat_value=multiprocessing.Value("d", 0.0),
    failed_event=multiprocessing.Event(),
    exception_info_queue=multiprocessing.Queue(maxsize=1),
    metrics_queue=multiprocessing.Queue(),
    tools=[calculator],
    max_inflight_tasks=4096,
    vllm_server_url=f"http://127.0.0.1:{port}",
    max_tokens=256,
)
asyncio.run(turns.turns(rollouts))
