"""What tests of several areas share: who runs what when, one private Ray for the whole session, because a process can
have only one, an empty database, a look at where processes listen, and a server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentfly_lib.configs import RayConfig

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is first imported; no test waits for a hub

_LONGEST = (
    "tests/flows/test_resume.py",
    "tests/serve/test_for_real.py",
    "tests/training/test_ranks_agree.py",
    "tests/flows/test_train.py",
    "tests/flows/test_asynchronous.py",
    "tests/inference/test_generation.py",
    "tests/flows/",
    "tests/serve/",
)
"""Files that take minutes, the longest first, so that no worker has one left when the others are done."""
_TOGETHER = (
    # One finished run of the recipe `ci`, and the databases in its root.
    ("tests/flows/test_train.py", "tests/flows/test_finetune.py", "tests/flows/test_refusals.py"),
    # The engines of `tests/inference/conftest.py`.
    (
        "tests/inference/test_generation.py",
        "tests/inference/test_weight_update.py",
        "tests/inference/test_streaming.py",
        "tests/inference/test_actor.py",
        "tests/inference/test_native.py",
        "tests/inference/test_pictures.py",
    ),
)
"""Files that need the same costly set-up of a session: one worker takes them one after another, and makes it once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((place for place, start in enumerate(_LONGEST) if item.nodeid.startswith(start)), len(_LONGEST))

    items.sort(key=place)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are never spelled out in a test's name: packed ones hold the time, and the workers of one session must
    agree on every name."""
    return f"{argname}: {len(val)} bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but what stands together in `_TOGETHER` is like one file."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((files[0] for files in _TOGETHER if file in files), file)

    return Together(config, log)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with nothing in it: making one takes seconds, copying it none."""
    from mlflow.tracking import MlflowClient

    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    pytest.importorskip("ray")
    from agentfly_lib.cluster import start_ray

    with start_ray(RayConfig(), cpus_needed=8, namespace="tests"):
        yield


@pytest.fixture(scope="session")
def listening() -> Callable[[int], set[str]]:
    """`listening(pid)`: the addresses on which a process and its descendants accept connections."""
    import psutil

    def addresses(pid: int) -> set[str]:
        found: set[str] = set()
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    connections = process.net_connections(kind="inet")
                    found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        return {address.removeprefix("::ffff:") for address in found}

    return addresses


@pytest.fixture(scope="session")
def container_image() -> str:
    """Name of an image with a shell and a Python, made of this machine's files; skips where no Docker engine runs."""
    from agentfly_lib.resources.docker_engine import docker_engine, docker_missing
    from tests.resources.host_image import host_image

    if reason := docker_missing():
        pytest.skip(reason)
    return host_image(docker_engine().client)


class FakeServer:
    """An OpenAI-compatible server on the loopback interface that does what a test tells it.

    `answer(path, body)` gives the JSON to answer, a status, raw bytes, a `(status, headers, body)`, an asynchronous
    generator of the pieces of an event stream (of which `HANG_UP` breaks it off), or awaits first; `HANG_UP` closes the
    connection without an answer.
    """

    HANG_UP = object()

    def __init__(self, answer: Callable[[str, dict[str, Any]], Any]) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.hung_up = asyncio.Event()
        """Set when a client went away before its answer."""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.requests]

    async def start(self, port: int = 0) -> None:
        from aiohttp import web

        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: Any) -> Any:
        from aiohttp import web

        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            body = await request.json()
            path = request.path.removeprefix("/v1/")
            self.requests.append((path, body))
            self.headers.append(dict(request.headers))
            answer = self.answer(path, body)
            if inspect.isawaitable(answer):
                answer = await answer
            if inspect.isasyncgen(answer):
                return await self._stream(request, answer)
        except asyncio.CancelledError:
            self.hung_up.set()
            raise
        finally:
            self.in_flight -= 1
        if answer is self.HANG_UP:
            request.transport.abort()
            return web.Response()
        if isinstance(answer, int):
            return web.Response(status=answer, text="the fake server says no")
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        if isinstance(answer, tuple):
            status, headers, text = answer
            return web.Response(status=status, headers=headers, text=text)
        return web.json_response(answer)

    async def _stream(self, request: Any, pieces: Any) -> Any:
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for piece in pieces:
            if piece is self.HANG_UP:
                request.transport.abort()
                return response
            await response.write(piece)
        await response.write_eof()
        return response


@pytest.fixture
async def fake_server() -> AsyncIterator[Callable[..., Awaitable[FakeServer]]]:
    """`await fake_server(answer)`: a started `FakeServer`, stopped after the test."""
    started: list[FakeServer] = []

    async def start(answer: Callable[[str, dict[str, Any]], Any]) -> FakeServer:
        server = FakeServer(answer)
        await server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        await server.stop()
