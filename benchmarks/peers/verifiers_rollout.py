"""Runs in the peer's own environment: rollouts of a verifiers agent over a completion server.

In the way that costs it least: the harness is a loop in this process, where its own programs are a process for each
rollout, and calls its tool itself, where they go through MCP servers. What stays is what every rollout of it passes:
the interception server, the training client with its renderer, and the trace.

python verifiers_rollout.py MODEL PORT   answers each number of chains with CPU seconds, see turns.py
"""

import asyncio
import json
import logging
import sys

import aiohttp
import turns
import verifiers.v1 as vf
from renderers import Qwen3RendererConfig
from verifiers.v1.interception import ElasticInterceptionPool

model, port = sys.argv[1:]
logging.disable(logging.WARNING)
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculates.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "What to calculate."}},
            "required": ["expression"],
        },
    },
}


async def calculator(expression: str) -> str:
    return "84"


class Loop(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    http: aiohttp.ClientSession

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # noqa: PLR0917 - the base class's
        messages = [{"role": "user", "content": data.prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        while True:
            body = {"model": ctx.model, "messages": messages, "tools": [CALCULATOR]}
            async with self.http.post(f"{endpoint}/chat/completions", json=body, headers=headers) as response:
                response.raise_for_status()
                message = (await response.json())["choices"][0]["message"]
            messages.append({key: value for key, value in message.items() if value is not None})
            if not message.get("tool_calls"):
                return vf.ProgramResult(exit_code=0, stdout="", stderr="")
            for call in message["tool_calls"]:
                result = await calculator(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def rollouts(agent: vf.Agent, count: int) -> int:
    tasks = [
        vf.Task(vf.TaskData(idx=number, prompt=f"What is 12 * 7, {number // 8}?"), vf.TaskConfig())
        for number in range(count)
    ]
    traces = await asyncio.gather(*map(agent.run, tasks))
    if failed := [trace for trace in traces if not trace.ok]:
        raise RuntimeError(f"{len(failed)} rollouts failed: {failed[0].errors}")
    return sum(trace.num_turns for trace in traces)


async def main() -> None:
    config = vf.AgentConfig(
        model="policy",
        client=vf.TrainClientConfig(
            base_url=f"http://127.0.0.1:{port}/v1", renderer=Qwen3RendererConfig(), renderer_model_name=model
        ),
        runtime=vf.SubprocessConfig(),
        sampling=vf.SamplingConfig(max_tokens=256),
    )
    async with (
        ElasticInterceptionPool() as interception,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as Loop.http,
    ):
        agent = vf.Agent(config, interception=interception)
        agent.harness = Loop(agent.harness.config)
        await turns.turns(lambda count: rollouts(agent, count))


asyncio.run(main())
