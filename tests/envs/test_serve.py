"""Environments behind a server: sessions are apart, failures are sorted, and nothing is left of what is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentfly_lib.configs import HFAgentConfig
from agentfly_lib.envs.serve import application
from agentfly_lib.envs.served import ServedInstance
from agentfly_lib.envs.session import EnvironmentSession
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import EnvironmentFailure, InfrastructureError


@pytest.fixture
async def start(odd) -> AsyncIterator[Any]:
    """Starts servers of the odd environment, in threads; gives their address."""
    servers = []

    async def begin(cap: int = 4, idle_seconds: float = 600.0, **settings: Any) -> str:
        server = TestServer(application(environment_spec(odd.THREAD, settings), cap=cap, idle_seconds=idle_seconds))
        await server.start_server()
        servers.append(server)
        return str(server.make_url("")).rstrip("/")

    yield begin
    for server in servers:
        await server.close()


async def sessions(url: str) -> int:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/health") as response:
        return (await response.json())["sessions"]


async def test_episodes_of_two_sessions_are_apart(odd, start) -> None:
    url = await start(mood="merry")
    spec = environment_spec(odd.KIND, {"mood": "merry"}, url=url)
    spec.check()
    async with spec.open() as one, spec.open() as other:
        first = EnvironmentSession(odd.KIND, one, {"word": "ant", "first_observation": "merry ant"})
        second = EnvironmentSession(odd.KIND, other, {"word": "bee", "first_observation": "merry bee"})
        assert (await first.step("go")).step.observation == "1: go"
        assert (await second.step("picture")).step.images == (b"\x89PNG one", b"\x89PNG two")
        assert (await first.step("wrong")).step.error == "no such action"
        assert (await second.step("go")).total == 0.25
        assert await sessions(url) == 2
    assert await sessions(url) == 0


async def test_a_failure_ends_the_session_and_is_told(odd, start) -> None:
    url = await start()
    async with environment_spec(odd.KIND, url=url).open() as instance:
        await instance.reset({"word": "ant"})
        with pytest.raises(EnvironmentFailure, match=r"failed to step: .*ValueError: it broke"):
            await instance.step("raise")
        assert not await instance.healthy()
        assert await sessions(url) == 0


async def test_no_room_no_start_no_server_and_another_game_are_infrastructure(odd, start) -> None:
    url = await start(cap=1)
    spec = environment_spec(odd.KIND, url=url)
    async with spec.open():
        with pytest.raises(InfrastructureError, match="all 1 sessions are in use"):
            await spec.create()
    broken = await start(start_code=3)
    with pytest.raises(InfrastructureError, match=r"failed to start: .*SystemExit: 3"):
        await environment_spec(odd.KIND, {"start_code": 3}, url=broken).create()
    with pytest.raises(InfrastructureError, match=r"'mood': 'calm'.* but the recipe needs .*'mood': 'merry'"):
        await environment_spec(odd.KIND, {"mood": "merry"}, url=url).create()
    with pytest.raises(InfrastructureError, match=r"serves .*'kind': 'odd'"):
        await environment_spec(odd.kind(name="even"), url=url).create()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(InfrastructureError, match="failed to start: Cannot connect"):
            await environment_spec(odd.KIND, url=f"http://127.0.0.1:{probe.getsockname()[1]}").create()


async def test_a_session_that_nobody_uses_is_ended(odd, start) -> None:
    url = await start(idle_seconds=0.1)
    instance = await environment_spec(odd.KIND, url=url).create()
    while await sessions(url):
        await asyncio.sleep(0.02)
    with pytest.raises(EnvironmentFailure, match="there is no such session"):
        await instance.reset({"word": "ant"})
    await instance.close()


async def test_what_is_no_request_is_refused(start) -> None:
    url = await start()
    async with aiohttp.ClientSession(url) as client:
        identity = (await (await client.post("/sessions", json={})).json())["session"]
        for path, body in (("step", b"{"), ("step", b"[]"), ("step", b'{"action": 7}'), ("reset", b'{"columns": 1}')):
            kind = {"Content-Type": "application/json"}
            response = await client.post(f"/sessions/{identity}/{path}", data=body, headers=kind)
            assert response.status == 400
            assert (await response.json())["failed"].startswith("send ")
        assert (await client.post("/sessions/other/step", json={"action": "go"})).status == 404


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/sessions", {"Content-Type": "text/plain"}, 415),
        ("/sessions", {"Origin": "http://127.0.0.1:8000"}, 403),
        ("/sessions", {"Sec-Fetch-Site": "same-origin"}, 403),
        ("/sessions", {"Host": "rebound.example:8000"}, 403),
        ("/sessions", {"Host": "localhost:8000"}, 200),
        ("/sessions", {"Host": "[::1]:8000"}, 200),
        ("/sessions", {"Host": "LOCALHOST"}, 200),
    ],
)
async def test_web_pages_may_not_ask(start, path: str, headers: dict[str, str], status: int) -> None:
    url = await start()
    async with aiohttp.ClientSession(url) as client:
        response = await client.post(path, data=b"{}", headers={"Content-Type": "application/json"} | headers)
        assert response.status == status
        assert ("failed" in await response.json()) == (status != 200)
    assert await sessions(url) == (status == 200)


async def test_an_answer_without_end_is_not_read_to_its_end(odd) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.write(b" " * (1 << 20))
        return answer

    app = web.Application()
    app.router.add_get("/health", endless)
    async with TestServer(app) as server:
        with pytest.raises(InfrastructureError, match="more than 67108864 bytes"):
            await environment_spec(odd.KIND, url=str(server.make_url("")).rstrip("/")).create()


async def test_a_server_cannot_send_us_elsewhere(odd, start) -> None:
    elsewhere = await start()
    app = web.Application()

    async def redirect(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"{elsewhere}/health")

    app.router.add_route("*", "/{path:.*}", redirect)
    async with TestServer(app) as server:
        with pytest.raises(InfrastructureError, match=r"failed to start: it redirects to 'http://127\.0\.0\.1"):
            await environment_spec(odd.KIND, url=str(server.make_url("")).rstrip("/")).create()


async def test_no_other_limit_than_the_kinds_own_ends_a_request(odd, start) -> None:
    async with environment_spec(odd.KIND, url=await start()).open() as instance:
        assert isinstance(instance, ServedInstance)
        assert instance._client.timeout.total is None


async def test_as_a_program_it_listens_on_the_loopback_alone_and_takes_its_processes_with_it(odd) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "agentfly_lib.envs.host", "--http", str(port), "--kind", "odd_environments:KIND"]
    program = subprocess.Popen(
        [*command, "--settings", json.dumps({"mood": "merry"})], env={"PYTHONPATH": str(Path(odd.__file__).parent)}
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(120):
            while True:
                try:
                    await sessions(url)
                    break
                except aiohttp.ClientError:
                    assert program.poll() is None
                    await asyncio.sleep(0.1)
        listening = psutil.Process(program.pid).net_connections("inet")
        assert {each.laddr.ip for each in listening} == {"127.0.0.1"}
        instance = await environment_spec(odd.KIND, {"mood": "merry"}, url=url).create()
        assert await instance.reset({"word": "ant"}) == "merry ant"
        daemon = int((await instance.step("daemon")).observation)
        assert psutil.pid_exists(daemon)
    finally:
        program.terminate()
        program.wait(60)
    async with asyncio.timeout(60):
        while psutil.pid_exists(daemon) and psutil.Process(daemon).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.02)
    await instance.close()


def test_as_a_program_it_says_what_is_wrong() -> None:
    command = [sys.executable, "-m", "agentfly_lib.envs.host", "--http", "0"]
    for more, message in (((), "--http needs --kind"), (("--kind", "ches"), "did you mean 'chess'")):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        assert message in done.stderr


def test_a_recipe_names_a_server() -> None:
    config = HFAgentConfig.model_validate({"environment": {"name": "chess", "url": "http://127.0.0.1:8000"}})
    assert config.environment is not None
    assert config.environment.url == "http://127.0.0.1:8000"
    with pytest.raises(ValueError, match="url"):
        HFAgentConfig.model_validate({"environment": {"name": "chess", "url": "http://user:secret@x"}})
