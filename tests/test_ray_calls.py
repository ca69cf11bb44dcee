"""A call whose caller was cancelled goes on in its thread, and is waited for by whoever comes next."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from agentfly_lib.ray_calls import abandoned_calls_end, ray_call


async def test_the_loop_goes_on_and_the_call_is_answered():
    release = threading.Event()
    asyncio.get_running_loop().call_later(0.01, release.set)
    assert await ray_call(release.wait, timeout=10), "the loop was free to let it go"
    assert await abandoned_calls_end(0.0), "nothing was abandoned"


async def test_an_abandoned_call_is_waited_for():
    begun, release = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        release.wait(10)

    calling = asyncio.ensure_future(ray_call(call))
    await asyncio.to_thread(begun.wait, 10)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not await abandoned_calls_end(0.01)
    release.set()
    assert await abandoned_calls_end(10)
    assert await abandoned_calls_end(0.0)


@pytest.mark.stack
async def test_ranks_are_looked_for_beside_the_loop_and_after_what_an_earlier_start_may_make(monkeypatch):
    """Ray answers after minutes where its head has failed."""
    pytest.importorskip("ray")
    from agentfly_lib.configs import LearnerConfig
    from agentfly_lib.errors import LearnerError
    from agentfly_lib.refs import LearnerRef
    from agentfly_lib.training import ranks

    asked: list[threading.Thread] = []

    def get_actor(name, namespace):
        asked.append(threading.current_thread())
        raise ValueError(name)

    monkeypatch.setattr(ranks.ray, "get_actor", get_actor)
    monkeypatch.setattr(ranks.ray, "util", SimpleNamespace(list_named_actors=lambda **_: get_actor("all", "")))
    ref = LearnerRef(names=("rank",), namespace="n", policy_version=0)
    with pytest.raises(LearnerError, match="is gone"):
        await ranks.Learner(ref, LearnerConfig()).status()
    assert threading.main_thread() not in asked

    release, calling = threading.Event(), None
    calling = asyncio.ensure_future(ray_call(release.wait, 10))
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.wait({calling})
    asked.clear()
    monkeypatch.setattr(ranks, "learner_fingerprint", lambda *_: "")
    config = SimpleNamespace(learner=LearnerConfig())
    starting = asyncio.ensure_future(
        ranks.ensure_learner(config, None, run_name="r", namespace="n")  # type: ignore[arg-type]
    )
    await asyncio.sleep(0.05)
    assert not asked
    release.set()
    with pytest.raises(ValueError, match="all"):
        await starting
    assert threading.main_thread() not in asked
