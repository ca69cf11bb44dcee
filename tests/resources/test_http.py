"""A service over HTTP: a session for each episode, and what it answers told by who is to blame."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import web

from agentfly_lib.errors import ConfigError, EnvironmentFailure, InfrastructureError
from agentfly_lib.resources import PoolLimits, ResourceEngine
from agentfly_lib.resources.http import HttpSpec


class Service:
    """Counts in sessions; remembers who opened and closed them."""

    def __init__(self) -> None:
        self.well = True
        self.open: dict[str, int] = {}
        self.episodes: list[str] = []

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/health", self.health)
        app.router.add_post("/sessions", self.begin)
        app.router.add_delete("/sessions/{id}", self.end)
        app.router.add_post("/sessions/{id}/count", self.count)
        app.router.add_get("/broken", self.broken)
        app.router.add_get("/nonsense", self.nonsense)
        app.router.add_get("/endless", self.endless)
        app.router.add_get("/packed", self.packed)
        self.runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.well else 503)

    async def begin(self, request: web.Request) -> web.Response:
        self.episodes.append((await request.json())["episode"])
        identity = f"s/{len(self.episodes)}"  # a name that must be quoted
        self.open[identity] = 0
        return web.json_response({"id": identity})

    async def end(self, request: web.Request) -> web.Response:
        del self.open[request.match_info["id"]]
        return web.Response(status=204)

    async def count(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        if identity not in self.open:
            return web.Response(status=404, text="no such session")
        self.open[identity] += 1
        return web.json_response(self.open[identity])

    async def broken(self, request: web.Request) -> web.Response:
        return web.Response(status=500, text="it broke")

    async def nonsense(self, request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async def endless(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.write(b"well " * 10_000)
        return answer

    async def packed(self, request: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(b" " * (1 << 25)), headers={"Content-Encoding": "gzip"})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    service.url = await service.start()  # type: ignore[attr-defined]
    yield service
    await service.runner.cleanup()


@pytest.fixture
def spec(service: Service) -> HttpSpec:
    return HttpSpec(url=service.url, sessions="/sessions", pool=PoolLimits(cap=1))  # type: ignore[attr-defined]


async def count(engine: ResourceEngine, spec: HttpSpec, trajectory: str) -> list[int]:
    async with engine.lease(spec, trajectory=trajectory) as service:
        path = f"/sessions/{service.session.replace('/', '%2F')}/count"
        return [await service.request("POST", path) for _ in range(3)]


async def test_each_trajectory_has_a_session_of_its_own(service: Service, spec: HttpSpec):
    await asyncio.to_thread(spec.check)
    async with ResourceEngine() as engine:
        assert await asyncio.gather(*(count(engine, spec, name) for name in "abc")) == [[1, 2, 3]] * 3
        assert engine.metrics()["resources/made/count"] == 1
    assert [episode.partition("#")[0] for episode in service.episodes] == ["a", "b", "c"]
    assert service.open == {}


async def test_what_it_answers_is_told_by_who_is_to_blame(spec: HttpSpec):
    async with spec.open() as found:
        with pytest.raises(InfrastructureError, match="says 500: it broke"):
            await found.request("GET", "/broken")
        with pytest.raises(EnvironmentFailure, match="says 404"):
            await found.request("GET", "/nothing")
        with pytest.raises(EnvironmentFailure, match="not JSON: <html>"):
            await found.request("GET", "/nonsense")
        with pytest.raises(EnvironmentFailure, match="answers with more than"):
            await found.request("GET", "/endless")
        with pytest.raises(EnvironmentFailure, match="not JSON"):  # it is not unpacked, to whatever size
            await found.request("GET", "/packed")


async def test_health_is_a_status_whatever_comes_after_it(spec: HttpSpec):
    chatty = replace(spec, health="/endless", sessions=None)
    async with asyncio.timeout(10):
        await asyncio.to_thread(chatty.check)
        async with chatty.open() as found:
            assert await found.healthy()


async def test_one_that_is_not_well_is_not_lent(service: Service, spec: HttpSpec):
    service.well = False
    with pytest.raises(ConfigError, match="says 503"):
        await asyncio.to_thread(spec.check)
    async with ResourceEngine() as engine:
        with pytest.raises(InfrastructureError, match="does not report that it is healthy"):
            await count(engine, spec, "a")
        service.well = True
        assert await count(engine, spec, "b") == [1, 2, 3]


async def test_one_that_goes_away_is_a_failure_of_infrastructure(service: Service, spec: HttpSpec):
    async with spec.open() as found:
        await service.runner.cleanup()
        with pytest.raises(InfrastructureError, match="is not answered"):
            await found.request("GET", "/health")
        assert not await found.healthy()
    with pytest.raises(ConfigError, match="no service answers"):
        await asyncio.to_thread(spec.check)


def test_what_is_no_address_is_refused():
    with pytest.raises(ConfigError, match="begins with http"):
        HttpSpec(url="localhost:80")
