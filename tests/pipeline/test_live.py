"""What a session publishes of itself while it lasts, and how it says that it has ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentfly_lib.errors import EngineError
from agentfly_lib.pipeline import live
from agentfly_lib.pipeline.activity import RunActivity
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.viewer.live import LiveDisplay
from agentfly_lib.viewer.state import RunState, read_state


class Terminated(BaseException):
    """What the handler of SIGTERM raises here."""


def a_pool() -> SimpleNamespace:
    return SimpleNamespace(
        name="ProcessSpec", alive=3, in_use=2, waiting=1, counts=SimpleNamespace(made=4, died=1, failed=0)
    )


@pytest.fixture
def session(tmp_path: Path) -> Any:
    display = LiveDisplay("demo", quiet=True)
    display.row("1", {"train/reward/mean": 0.5, "something/else": 1.0})
    return SimpleNamespace(
        config=SimpleNamespace(run=SimpleNamespace(name="demo", steps=7), inference=SimpleNamespace(replicas=2)),
        directory=RunDirectory(tmp_path),
        display=display,
        times=SimpleNamespace(activity=RunActivity()),
        borrowing=SimpleNamespace(pools=[a_pool()]),
        namespace="n",
        cluster=SimpleNamespace(running=True),
        trains=True,
        schedule=SimpleNamespace(first_open_step=lambda: 7),
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Any]]:
    """What each engine answers; looks follow at once, and no process is searched."""
    found: dict[str, Callable[[], Any]] = {}

    def ask(ref: Any) -> list[Any]:
        return [found[ref.names[0]]()]

    monkeypatch.setattr(live, "engine_status", ask)
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(live, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(live, "marked_processes", set)
    return found


def well(tokens: list[int]) -> Callable[[], Any]:
    return lambda: SimpleNamespace(policy_version=2, in_flight=5, sampled_tokens=tokens[0], rss_mib=100.0)


def dead() -> Any:
    raise EngineError("engine 'engine-1' is dead")


async def seen(session: Any, wanted: Callable[[RunState], bool]) -> RunState:
    async with asyncio.timeout(60):
        while True:
            state = read_state(session.directory.path)
            if state is not None and wanted(state):
                return state
            await asyncio.sleep(0.01)


async def test_it_says_what_goes_on_and_how_it_ended(session: Any, answers: dict[str, Callable[[], Any]]) -> None:
    tokens = [100]
    answers |= {"engine-0": well(tokens), "engine-1": dead}
    async with live.published(session, Terminated):
        with (
            session.display.stage("steps", total=7) as steps,
            session.display.stage("collect-000002", total=64),
            session.times.activity.generating(),
            session.times.activity.using_tools(),
        ):
            steps.update(completed=2)
            logging.getLogger("agentfly_lib.somewhere").warning("trajectory %s is tried again", "t1")
            state = await seen(session, lambda state: bool(state.engines and state.warnings and state.generating))
            tokens[0] = 700
            faster = await seen(session, lambda state: bool(state.engines[0].tokens_per_second))
    assert (state.status, state.steps_done, state.steps) == ("RUNNING", 2, 7)
    assert (state.generating, state.using_tools) == (1, 1)
    assert [stage.name for stage in state.stages] == ["steps", "collect-000002"]
    assert [engine.name for engine in state.engines] == ["engine-0"], "one that never answered has not started"
    assert (faster.engines[0].in_flight, faster.engines[0].policy_version) == (5, 2)
    assert (state.pools[0].in_use, state.pools[0].waiting, state.pools[0].died) == (2, 1, 1)
    assert state.rows == (("1", {"train/reward/mean": 0.5}),)
    assert state.warnings[0].endswith("trajectory t1 is tried again")
    ended = read_state(session.directory.path)
    assert ended is not None
    assert (ended.status, ended.steps_done, ended.engines) == ("FINISHED", 7, ())


async def test_an_engine_that_dies_or_hangs_is_shown_so(session: Any, answers: dict[str, Callable[[], Any]]) -> None:
    release = threading.Event()
    answers |= {"engine-0": well([1]), "engine-1": well([1])}
    try:
        async with live.published(session, Terminated):
            await seen(session, lambda state: len(state.engines) == 2)
            answers["engine-1"] = dead
            state = await seen(session, lambda state: state.engines[1].error is not None)
            assert state.engines[1].error == "engine 'engine-1' is dead"
            answers["engine-0"] = lambda: release.wait(60) and dead()
            state = await seen(session, lambda state: "no answer for" in str(state.engines[0].error))
            release.set()
    finally:
        release.set()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), "FAILED"),
        (asyncio.CancelledError(), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
        (Terminated(), "KILLED"),
    ],
)
async def test_how_it_ended(
    session: Any, answers: dict[str, Callable[[], Any]], error: BaseException, status: str
) -> None:
    session.cluster.running = False
    with pytest.raises(type(error)):
        async with live.published(session, Terminated):
            raise error
    state = read_state(session.directory.path)
    assert state is not None
    assert state.status == status
    assert logging.getLogger("agentfly_lib").handlers == []


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("write_state", OSError(28, "No space left on device")),
        ("write_state", ValueError("a field of the state is not what it should be")),
        ("engine_status", RuntimeError("Ray is shutting down")),
    ],
)
async def test_what_goes_wrong_in_it_stops_nothing_and_fails_no_run(
    session: Any,
    answers: dict[str, Callable[[], Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
    error: Exception,
) -> None:
    tries: list[int] = []

    def fail(*_: Any) -> None:
        tries.append(1)
        raise error

    answers |= {"engine-0": dead, "engine-1": dead}
    monkeypatch.setattr(live, where, fail)
    async with live.published(session, Terminated), asyncio.timeout(60):
        while len(tries) < 5:
            await asyncio.sleep(0.01)
    assert caplog.text.count("cannot be published") == 1


def test_gpu_memory_by_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert live.gpu_memory() == {}
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '4711, 1024'\necho '4711, 512'\necho '12, [N/A]'\n")
    program.chmod(0o755)
    assert live.gpu_memory() == {4711: 1536.0}
