"""A run leaves Ray when nothing of it is about to make anything there any more."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, contextmanager
from types import SimpleNamespace

import agentfly_lib.cluster
from agentfly_lib.pipeline.cluster import RunCluster
from agentfly_lib.ray_calls import ray_call


async def test_what_an_abandoned_call_makes_while_the_actors_end_is_ended_too(monkeypatch):
    log: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    @contextmanager
    def start_ray(*_, **__):
        log.append("joined")
        yield
        log.append("left")

    def end_actors(namespace: str) -> None:
        log.append("actors end")
        ended.set()

    def make() -> None:
        begun.set()
        assert ended.wait(10)
        log.append("another is made")

    monkeypatch.setattr(agentfly_lib.cluster, "start_ray", start_ray)
    monkeypatch.setattr(agentfly_lib.cluster, "end_actors", end_actors)
    config = SimpleNamespace(inference=SimpleNamespace(replicas=1), ray=None)
    async with AsyncExitStack() as closing:
        cluster = RunCluster(config, namespace="n", trains=False, closing=closing)  # type: ignore[arg-type]
        await cluster.start_for_actors()
        making = asyncio.ensure_future(ray_call(make))
        await asyncio.to_thread(begun.wait, 10)
        making.cancel()
        await asyncio.wait({making})
    assert log == ["joined", "actors end", "another is made", "actors end", "left"]
