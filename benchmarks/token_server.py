"""A completion server that answers at once, in a process of its own: two tool calls, then an answer.

It speaks as much of vLLM's `/v1/completions` as clients of token ids use. Which turn a prompt asks for is told by how
many turns have ended in it.

python -m benchmarks.token_server MODEL   prints its port
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson
from aiohttp import web

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 7"}}\n</tool_call>'
ANSWER = "The answer is \\boxed{84}"
CALLS_PER_CHAIN = 3


async def _serve(model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    replies = [[*tokenizer.encode(text, add_special_tokens=False), end] for text in (CALL, CALL, ANSWER)]
    firsts = 0

    async def complete(request: web.Request) -> web.Response:
        nonlocal firsts
        prompt = orjson.loads(await request.read())["prompt"]
        ended = prompt.count(end)
        firsts = firsts or ended  # the first prompt of all has as many as every first prompt
        ids = replies[(ended - firsts) // 2]  # a turn of the model and one of its tool end together
        choice = {
            "index": 0,
            "text": "",
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
        }
        body = orjson.dumps({"id": "0", "object": "text_completion", "choices": [choice], "usage": {}})
        return web.Response(body=body, content_type="application/json")

    application = web.Application(client_max_size=64 * 2**20)
    application.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=8192)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
