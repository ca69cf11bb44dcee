"""The index service as its users have it: started when it is first needed, started again when it has died, shared.

    service = shared_service(IndexConfig(corpus=Path("wiki.jsonl")))
    hits = service.search(["who founded Rome"], 3)

A process (`envs.search.server`) holds the index; it ends with this one, however this one ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import http.client
import json
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any

from agentfly_lib.bounded import call_in_thread
from agentfly_lib.envs.search.corpus import Document
from agentfly_lib.envs.search.settings import IndexConfig, check_index
from agentfly_lib.errors import DataError, InfrastructureError
from agentfly_lib.resources.spec import PoolLimits, PoolScope

__all__ = ["IndexClient", "IndexService", "IndexSpec", "shared_service"]

_WHERE = "search_index"
_CLOSE_SECONDS = 5.0
_HEALTH_SECONDS = 5.0
_MAX_BATCH = 512


class IndexService:
    """An index in a process of its own. Threads may share it."""

    def __init__(self, config: IndexConfig) -> None:
        self._config = config
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._port = 0
        self.starts = 0
        """How often it was started; more than once if it has died."""

    def start(self) -> None:
        """Starts it, unless it runs. Raises `DataError` for an unusable corpus, `InfrastructureError` else."""
        with self._changing:
            if self._process is not None and self._process.poll() is None:
                return
            self._end()
            self._start()

    def search(self, queries: Sequence[str], count: int) -> list[list[Document]]:
        """For each query at most `count` documents, best first. Raises `InfrastructureError` if there is no answer.

        A process that has died is replaced, and asked once more.
        """
        # Half surrogates, which models may write, are no JSON.
        sendable = [query.encode("utf-8", "replace").decode() for query in queries]
        body = json.dumps({"queries": sendable, "topk": count})
        try:
            answer = self._ask("POST", "/retrieve", body)
        except (OSError, http.client.HTTPException) as error:
            if self.alive:
                raise InfrastructureError(
                    f"the search index gives no answer: {type(error).__name__}: {error}", where=_WHERE
                ) from error
            try:
                answer = self._ask("POST", "/retrieve", body)
            except (OSError, http.client.HTTPException) as again:
                raise InfrastructureError(f"the search index died twice: {again}", where=_WHERE) from again
        return [[_document(hit["document"]) for hit in row] for row in answer["result"]]

    @property
    def alive(self) -> bool:
        """Its process runs."""
        process = self._process
        return process is not None and process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of its process."""
        return self._process.pid if self._process is not None else None

    def healthy(self) -> bool:
        """It runs and answers."""
        if not self.alive:
            return False
        try:
            return bool(self._ask("GET", "/health", None, seconds=_HEALTH_SECONDS))
        except (OSError, http.client.HTTPException, InfrastructureError):
            return False

    def statistics(self) -> dict[str, int]:
        """`documents`, and the `queries` and `batches` that were searched."""
        return self._ask("GET", "/health", None)

    def close(self) -> None:
        """Ends it. A later search starts it anew."""
        with self._changing:
            self._end()

    def _ask(self, method: str, path: str, body: str | None, *, seconds: float | None = None) -> Any:
        self.start()
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=seconds or self._config.timeout_seconds
        )
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        if response.status != 200:
            raise InfrastructureError(
                f"the search index answers with status {response.status}: {text[:300].decode('utf-8', 'replace')}",
                where=_WHERE,
            )
        return json.loads(text)

    def _start(self) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the process
        command = [sys.executable, "-m", "agentfly_lib.envs.search.server", "--child"]
        try:
            self._process = subprocess.Popen(
                [*command, "--settings", self._config.model_dump_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
            )
        except OSError as error:
            raise InfrastructureError(
                f"no process for the search index can be started: {error}", where=_WHERE
            ) from error
        self.starts += 1
        try:
            self._port = self._ready(self._process)
        except BaseException:
            self._end()
            raise

    def _ready(self, process: subprocess.Popen[bytes]) -> int:
        line = _first_line(process, self._config.start_seconds)
        if line is None:
            raise InfrastructureError(
                f"the search index was not ready within {self._config.start_seconds:g} s", where=_WHERE
            )
        try:
            told = json.loads(line)
            if "error" in told:
                raise DataError(told["error"])
            return int(told["port"])
        except (ValueError, KeyError, TypeError) as error:
            raise InfrastructureError(f"the search index did not start: {self._complaint()}", where=_WHERE) from error

    def _complaint(self) -> str:
        if self._complaints is None:
            return ""
        self._complaints.seek(0)
        return " ".join(self._complaints.read().decode("utf-8", "replace").split())[-600:]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()  # it ends when its standard input does
            try:
                process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None


_sharing = threading.Lock()
_shared: dict[IndexConfig, IndexService] = {}


def shared_service(config: IndexConfig) -> IndexService:
    """This process's service of these settings, not started yet if nobody has needed it."""
    with _sharing:
        if config not in _shared:
            service = _shared[config] = IndexService(config)
            atexit.register(service.close)
        return _shared[config]


class IndexClient:
    """Searches of many coroutines of one event loop: those that come while one request is under way go together."""

    def __init__(self, service: IndexService) -> None:
        self._service = service
        self._waiting: list[tuple[str, int, asyncio.Future[list[Document]]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def search(self, query: str, count: int) -> list[Document]:
        """At most `count` documents, best first. Raises `InfrastructureError`."""
        answer: asyncio.Future[list[Document]] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, count, answer))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await answer

    async def begin(self, episode: str) -> None:
        """Nothing to do: a search leaves nothing behind."""

    async def healthy(self) -> bool:
        """The service runs and answers."""
        return await call_in_thread(self._service.healthy)

    async def close(self) -> None:
        """Ends the service."""
        await call_in_thread(self._service.close)

    async def _ask(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
            queries, most = [query for query, _, _ in batch], max(count for _, count, _ in batch)
            try:
                found = await call_in_thread(functools.partial(self._service.search, queries, most))
            except Exception as error:  # noqa: BLE001  each caller gets it, and the next batch is asked
                for _, _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, count, answer), row in zip(batch, found, strict=True):
                if not answer.done():  # who asked may be gone
                    answer.set_result(row[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """An index as a resource: one for all trajectories, replaced when it is dead."""

    config: IndexConfig

    @property
    def pool(self) -> PoolLimits:
        """One, shared; kept for as long as a pause between two steps of a training may last."""
        seconds = self.config.start_seconds + 30.0
        return PoolLimits(cap=1, scope=PoolScope.SHARED, idle_seconds=3600.0, start_seconds=seconds)

    def check(self) -> None:
        """Raises `ConfigError` if the index cannot be made here."""
        check_index(self.config, "the search index")

    async def create(self) -> IndexClient:
        """A service of its own, started."""
        service = IndexService(self.config)
        starting = asyncio.ensure_future(call_in_thread(service.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: _close_after(service, done))
            raise
        return IndexClient(service)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IndexClient]:
        """This process's shared service, without an engine's pool."""
        yield IndexClient(shared_service(self.config))


def _close_after(service: IndexService, started: asyncio.Future[None]) -> None:
    if not started.cancelled():
        started.exception()
    threading.Thread(target=service.close, daemon=True).start()


def _first_line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """None if the time is up; what was written until the output's end, if that comes first."""
    assert process.stdout is not None
    deadline, line = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = process.stdout.read1(4096)  # pyright: ignore[reportAttributeAccessIssue]  a buffered reader has it
            if not data:
                return line
            line += data
    return line


def _document(about: dict[str, str]) -> Document:
    return Document(id=about["id"], title=about["title"], text=about["text"])
