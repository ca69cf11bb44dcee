"""A completion server that answers at once, in a process of its own: two tool calls, then an answer.

It speaks as much of vLLM as clients of token ids use: `/v1/completions` and `/inference/v1/generate`; `/answered` tells
how many of both it has answered. Which turn a prompt asks for is told by how many turns have ended in it.

python -m benchmarks.token_server MODEL   prints its port
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 7"}}\n</tool_call>'
ANSWER = "The answer is \\boxed{84}"
CALLS_PER_CHAIN = 3
_LOGPROB = -0.5


class Replies:
    """What it says, as token ids: `ids` holds one reply for each call of a chain."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        self._end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.ids = [[*tokenizer.encode(text, add_special_tokens=False), self._end] for text in (CALL, CALL, ANSWER)]
        self._first = 0

    def to(self, prompt: Sequence[int]) -> list[int]:
        """The reply to a prompt [P]."""
        ended = prompt.count(self._end)
        self._first = self._first or ended  # the first prompt of all has as many as every first prompt
        return self.ids[(ended - self._first) // 2]  # a turn of the model and one of its tool end together


async def _serve(model: Path) -> None:
    replies, answered = Replies(model), 0

    async def complete(request: web.Request) -> web.Response:
        nonlocal answered
        answered += 1
        ids = replies.to(orjson.loads(await request.read())["prompt"])
        choice = {
            "index": 0,
            "text": "",
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": {"token_logprobs": [_LOGPROB] * len(ids)},
        }
        return _json({"id": "0", "object": "text_completion", "choices": [choice], "usage": {}})

    async def generate(request: web.Request) -> web.Response:
        nonlocal answered
        answered += 1
        ids = replies.to(orjson.loads(await request.read())["token_ids"])
        content = [{"token": f"token_id:{token}", "logprob": _LOGPROB} for token in ids]
        choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}}
        return _json({"request_id": "0", "choices": [choice]})

    async def models(_: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": "policy", "object": "model", "max_model_len": 32768}]})

    async def count(_: web.Request) -> web.Response:
        return _json({"answered": answered})

    application = web.Application(client_max_size=64 * 2**20)
    application.router.add_post("/v1/completions", complete)
    application.router.add_post("/inference/v1/generate", generate)
    application.router.add_get("/v1/models", models)
    application.router.add_get("/answered", count)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=8192)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
