"""Ranks that live and do nothing are noticed long before the time limit; those that are slow are left to work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("ray")

from agentfly_lib.configs import LearnerConfig  # noqa: E402
from agentfly_lib.errors import LearnerError  # noqa: E402
from agentfly_lib.refs import LearnerRef  # noqa: E402
from agentfly_lib.training import ranks  # noqa: E402
from agentfly_lib.training.ranks import Learner, Pulse  # noqa: E402


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_rank_that_does_not_answer_is_named() -> None:
    clock = Clock()
    pulse = Pulse(["a", "b"], computes=False, clock=clock)
    clock.now += 100
    pulse.heard("b", 0)
    assert pulse.fault() is None
    clock.now += 30  # 130 s since `a` was heard of, 30 since `b` was
    assert pulse.fault() == "a did not answer for 120 s: stopped, or short of memory"


def test_ranks_that_answer_and_compute_nothing_wait_for_each_other() -> None:
    def after(gaps: list[float], quiet: float, *, computes: bool = True) -> str | None:
        clock = Clock()
        pulse = Pulse(["a", "b"], computes=computes, clock=clock)
        for beats, gap in enumerate(gaps):
            clock.now += gap
            pulse.heard("a", beats)
            pulse.heard("b", 7)
        clock.now += quiet
        for name in ("a", "b"):
            pulse.heard(name, {"a": len(gaps) - 1, "b": 7}[name])
        return pulse.fault()

    assert after([1, 1, 1], quiet=590) is None
    assert "for 600 s" in str(after([1, 1, 1], quiet=610))
    # A micro-batch that took 100 s: the next may take 1,000.
    assert after([1, 100, 1], quiet=990) is None
    assert "for 1000 s" in str(after([1, 100, 1], quiet=1010))
    # What is no update may wait for a disk.
    assert after([1, 1, 1], quiet=5000, computes=False) is None


class Rank:
    """Stands for a handle: its calls answer what the test says, or never."""

    def __init__(self, *, update: Any = None, beats: Callable[[], int] | None = None) -> None:
        self.asked = 0
        self.update = SimpleNamespace(remote=lambda *_: self._future(update))
        self.beat = SimpleNamespace(remote=lambda: self._future(beats() if beats else None))

    def _future(self, answer: Any) -> asyncio.Future[Any]:
        self.asked += 1
        future = asyncio.get_running_loop().create_future()
        if answer is not None:
            future.set_result(answer)
        return future


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The handles that were ended; and limits a thousand times as short."""
    found: list[Any] = []
    monkeypatch.setattr(ranks, "_end", found.extend)
    for name in ("BEAT_SECONDS", "SILENT_SECONDS", "STALLED_SECONDS"):
        monkeypatch.setattr(ranks, name, getattr(ranks, name) / 1000)
    return found


async def call(handles: dict[str, Rank]) -> list[Any]:
    pulse = Pulse(list(handles), computes=True)
    return await ranks._call_all(handles, "update", (), 3600.0, pulse=pulse)


async def test_a_stopped_rank_ends_the_call_and_all_ranks(ended: list[Any]) -> None:
    handles = {"learner-0": Rank(update="done", beats=lambda: 1), "learner-1": Rank()}
    with pytest.raises(LearnerError, match=r"learner-1 did not answer.*run the same command again"):
        await asyncio.wait_for(call(handles), 20)
    assert ended == list(handles.values())


async def test_a_learner_listens_to_its_ranks(ended: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    handles = {"learner-0": Rank(beats=lambda: 3), "learner-1": Rank()}
    learner = Learner(LearnerRef(names=tuple(handles), namespace="n", policy_version=0), LearnerConfig())
    monkeypatch.setattr(learner, "_handles", lambda: handles)
    with pytest.raises(LearnerError, match="learner-1 did not answer"):
        await asyncio.wait_for(learner.update(Path("steps/000000"), 0), 20)
    assert ended == list(handles.values())


def test_what_a_rank_is_asked_beside_its_update_has_a_thread_of_its_own() -> None:
    import ray

    made = ray.remote(concurrency_groups={"beat": 1, "saves": 1})(ranks.LearnerActor)
    groups = made.__ray_metadata__.method_meta.concurrency_group_for_methods
    assert groups == {"beat": "beat", "finish_checkpoint": "saves"}


async def test_ranks_that_hang_end_the_call(ended: list[Any]) -> None:
    handles = {"learner-0": Rank(beats=lambda: 3), "learner-1": Rank(beats=lambda: 4)}
    with pytest.raises(LearnerError, match="no rank has computed anything"):
        await asyncio.wait_for(call(handles), 20)
    assert ended == list(handles.values())


async def test_a_driver_that_stood_still_itself_blames_nobody(
    ended: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z and fg: nobody was heard, because nobody was asked."""
    rank = Rank(beats=lambda: rank.asked)
    release: list[asyncio.Future[Any]] = []
    answered = rank.beat.remote

    def beat() -> asyncio.Future[Any]:
        if rank.asked == 5:
            time.sleep(4 * ranks.SILENT_SECONDS)
        if rank.asked == 20:
            release[0].set_result("report")
        return answered()

    rank.beat = SimpleNamespace(remote=beat)
    rank.update = SimpleNamespace(
        remote=lambda: release.append(asyncio.get_running_loop().create_future()) or release[0]
    )
    assert await asyncio.wait_for(call({"learner-0": rank}), 30) == ["report"]
    assert ended == []


async def test_ranks_that_work_are_waited_for_and_then_not_asked_any_more(ended: list[Any]) -> None:
    rank = Rank(beats=lambda: rank.asked)
    release: list[asyncio.Future[Any]] = []
    answered = rank.beat.remote

    def beat() -> asyncio.Future[Any]:
        if rank.asked == 250:  # longer than either limit, in which it moves with every answer
            release[0].set_result("report")
        return answered()

    rank.beat = SimpleNamespace(remote=beat)
    rank.update = SimpleNamespace(
        remote=lambda: release.append(asyncio.get_running_loop().create_future()) or release[0]
    )
    assert await asyncio.wait_for(call({"learner-0": rank}), 30) == ["report"]
    assert ended == []
    asked = rank.asked
    await asyncio.sleep(0.02)
    assert rank.asked == asked
