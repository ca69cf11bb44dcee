"""The index service: a process of its own that answers searches over HTTP, many at once.

    python -m agentfly_lib.envs.search.server --port 8000 --settings '{"corpus": "wiki.jsonl"}'

    POST /retrieve  {"queries": ["...", ...], "topk": 3}
                    {"result": [[{"document": {"id": ..., "title": ..., "text": ..., "contents": ...}, "score": ...}]]}
    GET  /health    {"documents": ...}

The interface is that of Search-R1's retriever. What has arrived while a search was running is searched together. It
listens on the loopback interface unless it is told another address, and answers programs, not web pages (see
`envs.callers`). With `--child` it ends when standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web
from pydantic import Field, ValidationError

from agentfly_lib.configs.base import Config
from agentfly_lib.envs.callers import programs_only
from agentfly_lib.envs.search.index import Found, Index, open_index
from agentfly_lib.envs.search.settings import IndexConfig
from agentfly_lib.errors import UserError

__all__ = ["MAX_QUERIES", "MAX_QUERY_CHARS", "Batcher", "main", "make_app"]

MAX_QUERIES = 1024
"""Of one request, and searched at once."""
MAX_QUERY_CHARS = 2000
"""What is longer is cut."""
MAX_RESULTS = 100


class Batcher:
    """Searches of many callers, made together: all that wait when the one before is done, up to `MAX_QUERIES`."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._waiting: asyncio.Queue[tuple[list[str], int, asyncio.Future[list[list[Found]]]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "index")
        self._working: asyncio.Task[None] | None = None
        self.batches = 0
        self.queries = 0

    async def search(self, queries: list[str], count: int) -> list[list[Found]]:
        """See `Index.search`."""
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        answer: asyncio.Future[list[list[Found]]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((queries, count, answer))
        return await answer

    async def _work(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            size = len(batch[0][0])
            while size < MAX_QUERIES and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
                size += len(batch[-1][0])
            await self._answer(batch)

    async def _answer(self, batch: list[tuple[list[str], int, asyncio.Future[list[list[Found]]]]]) -> None:
        queries = [query for part, _, _ in batch for query in part]
        self.batches += 1
        self.queries += len(queries)
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._index.search, queries, max(count for _, count, _ in batch)
            )
        except Exception as error:  # noqa: BLE001  each caller gets it, and the next batch is searched
            for _, _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        first = 0
        for part, count, answer in batch:
            if not answer.done():  # who asked may be gone
                answer.set_result([row[:count] for row in found[first : first + len(part)]])
            first += len(part)


class _Request(Config):
    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int = Field(default=3, ge=1, le=MAX_RESULTS)
    return_scores: bool = True


def make_app(index: Index, *, address: str = "127.0.0.1") -> web.Application:
    """The service over an index, which is to listen on `address`."""
    batcher = Batcher(index)

    async def retrieve(request: web.Request) -> web.Response:
        try:
            asked = _Request.model_validate_json(await request.read())
        except ValidationError as error:
            return web.json_response({"error": str(error)}, status=422)
        found = await batcher.search([query[:MAX_QUERY_CHARS] for query in asked.queries], asked.topk)
        return web.json_response({"result": [[_told(hit) for hit in row] for row in found]})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"documents": len(index), "batches": batcher.batches, "queries": batcher.queries})

    app = web.Application(client_max_size=2**25, middlewares=[programs_only(address)])
    app.add_routes([web.post("/retrieve", retrieve), web.get("/health", health)])
    return app


def main(arguments: list[str] | None = None) -> None:
    """Serves until it is ended. Tells its port, as a line of JSON, when it is ready, or what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m agentfly_lib.envs.search.server", description="A search index.")
    parser.add_argument("--settings", default="{}", help="the corpus and how it is searched, as JSON")
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="default: one that is free")
    parser.add_argument("--child", action="store_true", help="end when standard input does")
    options = parser.parse_args(arguments)
    if options.child:
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    start = time.monotonic()
    try:
        index = open_index(IndexConfig.model_validate_json(options.settings))
    except (UserError, ValidationError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(2)
    asyncio.run(_serve(index, options.address, options.port, time.monotonic() - start))


async def _serve(index: Index, address: str, port: int, seconds: float) -> None:
    runner = web.AppRunner(make_app(index, address=address))
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    ready = {"port": runner.addresses[0][1], "documents": len(index), "seconds": round(seconds, 3)}
    print(json.dumps(ready), flush=True)
    await asyncio.Event().wait()


def _told(hit: Found) -> dict[str, Any]:
    document = hit.document
    contents = f'"{document.title}"\n{document.text}' if document.title else document.text
    about = {"id": document.id, "title": document.title, "text": document.text, "contents": contents}
    return {"document": about, "score": hit.score}


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
