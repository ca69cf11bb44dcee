"""An environment in a process of its own: whatever it does is that episode's failure, and nothing of it stays."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from agentfly_lib.envs import StepResult, wire
from agentfly_lib.envs.host import Host, serve_pipes
from agentfly_lib.envs.instances import EnvironmentInstance, ProcessInstance, ThreadInstance
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import EnvironmentFailure, InfrastructureError

PLAYED = "calm ant"
GONE_SECONDS = 60.0


async def gone(*processes: int) -> None:
    """Waits until these processes have ended; a zombie that nobody has taken note of has."""
    deadline = time.monotonic() + GONE_SECONDS
    while any(map(lives, processes)):
        assert time.monotonic() < deadline, f"{processes} are still there"
        await asyncio.sleep(0.02)


def lives(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(instance: ProcessInstance) -> list[int]:
    """The host and everything below it."""
    return [instance.pid, *(child.pid for child in psutil.Process(instance.pid).children(recursive=True))]


@pytest.fixture
async def started(odd) -> Callable[..., Awaitable[ProcessInstance]]:
    """Starts instances, and closes them after the test."""
    instances: list[EnvironmentInstance] = []

    async def start(kind=odd.KIND, **settings) -> EnvironmentInstance:
        instances.append(await environment_spec(kind, settings).create())
        return instances[-1]

    yield start
    for instance in instances:
        await instance.close()


async def test_episodes_one_after_another(started) -> None:
    instance = await started(mood="merry")
    assert await instance.reset({"word": "ant"}) == "merry ant"
    first = [await instance.step(f"go {n}") for n in range(3)]
    assert [step.observation for step in first] == ["1: go 0", "2: go 1", "3: go 2"]
    assert [step.reward for step in first] == [0.25] * 3
    assert [step.done for step in first] == [False, False, True]
    assert first[0].info == {"n": [1]}
    assert await instance.reset({"word": "bee"}) == "merry bee"
    assert (await instance.step("go")).observation == "1: go"


async def test_what_a_game_prints_and_reads_is_not_the_conversation(started) -> None:
    instance = await started()
    assert await instance.reset({"word": "ant"}) == PLAYED  # it prints and writes to descriptor 1
    assert (await instance.step("read")).observation == "read ''"
    assert (await instance.step("picture")).images == (b"\x89PNG one", b"\x89PNG two")
    await instance.reset({"word": "ant"})
    assert (await instance.step("wrong")).error == "no such action"
    text = "üñ\x00\x1b[31m \u2028 𝄞\n" * 1000
    assert (await instance.step(text)).observation == f"2: {text}"


@pytest.mark.parametrize(
    ("action", "message"), [("raise", "failed to step: ValueError: it broke"), ("leave", "ended with exit code 7")]
)
async def test_what_breaks_an_episode_is_its_failure_and_the_instance_is_replaced(started, action, message) -> None:
    instance = await started()
    await instance.reset({"word": "ant"})
    processes = family(instance)
    assert len(processes) == 2  # the watcher and the environment
    with pytest.raises(EnvironmentFailure, match=message) as failure:
        await instance.step(action)
    assert failure.value.where == "environment:odd"
    assert not await instance.healthy()
    await gone(*processes)
    with pytest.raises(EnvironmentFailure, match="after an earlier failure"):
        await instance.step("go")


def test_what_is_no_answer_is_told(odd) -> None:
    host = Host()
    assert host.answer({"op": "step", "action": "go"})["failed"] == "RuntimeError: the environment is not made yet"
    assert host.answer({"op": "make", "kind": "odd_environments:KIND", "settings": {}}) == {}
    assert host.answer({"op": "reset", "columns": {"word": "ant"}}) == {"observation": PLAYED}
    assert host.answer({"op": "step", "action": "exit"})["failed"] == "SystemExit: 7"
    assert "a finite number, and this is nan" in host.answer({"op": "step", "action": "nan"})["failed"]
    assert "a step gives a StepResult, and this is a int" in host.answer({"op": "step", "action": "number"})["failed"]
    assert "text, and this is a bytes" in host.answer({"op": "step", "action": "bytes"})["failed"]
    assert "there is no game 7" in host.answer({"op": "reset", "columns": {"word": "ant", "bad": 7}})["failed"]
    assert "unknown" in host.answer({"op": "make", "kind": "odd_environments:KIND", "settings": {"modo": 1}})["failed"]


def test_answers_that_cannot_be_sent_are_told(odd, monkeypatch) -> None:
    monkeypatch.setattr(wire, "MAX_LINE_BYTES", 1000)
    lines = [
        {"op": "make", "kind": "odd_environments:KIND", "settings": {}},
        {"op": "reset", "columns": {"word": "ant"}},
        {"op": "step", "action": "set"},
        {"op": "step", "action": "huge"},
        {"op": "step", "action": "go"},
        {"op": "close"},
    ]
    answers = io.BytesIO()
    serve_pipes(Host(), io.BytesIO(b"".join(map(wire.dump, lines))), answers)
    made, reset, not_json, too_long, step, closed = map(wire.load, answers.getvalue().splitlines())
    assert (made, reset, closed) == ({}, {"observation": PLAYED}, {})
    assert "a value that is not JSON" in not_json["failed"]
    assert "bytes long, more than 1000" in too_long["failed"]
    assert step["observation"] == "3: go"


async def test_a_hanging_step_is_killed_at_its_limit(started) -> None:
    instance = await started()
    await instance.reset({"word": "ant"})
    instance._step_seconds = 1.0
    processes = family(instance)
    with pytest.raises(EnvironmentFailure, match="did not step within 1 s and was killed"):
        await instance.step("hang_in_c")
    await gone(*processes)


async def test_cancelling_a_step_kills_it_and_what_it_has_started_daemons_too(started) -> None:
    instance = await started()
    await instance.reset({"word": "ant"})
    daemon = int((await instance.step("daemon")).observation)
    processes = family(instance)
    step = asyncio.ensure_future(instance.step("hang"))
    await asyncio.sleep(0.05)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert not await instance.healthy()
    await gone(daemon, *processes)


async def test_one_that_will_not_close_is_killed(started, monkeypatch) -> None:
    monkeypatch.setattr("agentfly_lib.envs.instances.CLOSE_SECONDS", 0.2)
    instance = await started(mood="clingy")
    processes = family(instance)
    await instance.close()
    await gone(*processes)


async def test_killed_from_outside_it_says_so(started) -> None:
    instance = await started()
    await instance.reset({"word": "ant"})
    watcher, environment = family(instance)
    os.kill(environment, signal.SIGKILL)
    await gone(watcher)
    with pytest.raises(EnvironmentFailure, match="died of signal 9"):
        await instance.step("go")


async def test_memory_is_limited_where_the_kind_says_so(started, odd) -> None:
    instance = await started(odd.SMALL)
    await instance.reset({"word": "ant"})
    assert (await instance.step("allocate 700")).observation == "refused"
    assert (await instance.step("allocate 10")).observation == f"got {10 << 20}"


async def test_one_that_cannot_start_is_infrastructure(odd) -> None:
    with pytest.raises(InfrastructureError, match="failed to start: SystemExit: 3"):
        await environment_spec(odd.KIND, {"start_code": 3}).create()
    with pytest.raises(InfrastructureError, match="did not start within 1 s and was killed"):
        await environment_spec(odd.IMPATIENT, {"mood": "slow"}).create()


async def test_one_without_a_process_to_start_is_infrastructure(odd, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InfrastructureError, match="no process for odd can be started"):
        await environment_spec(odd.KIND).create()


async def test_a_thread_serves_the_same_way(odd) -> None:
    instance = await environment_spec(odd.THREAD).create()
    assert isinstance(instance, ThreadInstance)
    assert await instance.reset({"word": "ant"}) == PLAYED
    assert (await instance.step("picture")).images == (b"\x89PNG one", b"\x89PNG two")
    assert await instance.healthy()
    with pytest.raises(EnvironmentFailure, match="ValueError: it broke"):
        await instance.step("raise")
    assert not await instance.healthy()
    await instance.close()
    await instance.close()
    instance = await environment_spec(odd.THREAD).create()
    await instance.reset({"word": "ant"})
    with pytest.raises(EnvironmentFailure, match="a finite number"):
        await instance.step("nan")
    with pytest.raises(InfrastructureError, match="failed to start"):
        await environment_spec(odd.THREAD, {"start_code": 1}, place="thread").create()


async def test_calls_that_wait_keep_no_other_from_its_thread(odd) -> None:
    """More of them than the pool of threads that everything in the process shares has places."""
    free = threading.Event()
    waits = odd.kind(make=lambda **_: Patient(free), place="thread")
    instances = [await environment_spec(waits).create() for _ in range(40)]
    waiting = [asyncio.ensure_future(instance.step("wait")) for instance in instances]
    assert await (await environment_spec(odd.THREAD).create()).reset({"word": "ant"}) == PLAYED
    assert await asyncio.to_thread(lambda: "here") == "here"
    assert not any(each.done() for each in waiting)
    free.set()
    assert {result.observation for result in await asyncio.gather(*waiting)} == {"free"}


async def test_a_thread_that_is_too_slow_is_said_to_be(odd) -> None:
    free = threading.Event()
    hasty = odd.kind(make=lambda **_: Patient(free), place="thread", step_seconds=lambda settings: 0.05)
    instance = await environment_spec(hasty).create()
    with pytest.raises(EnvironmentFailure, match=r"odd did not step within 0.05 s"):
        await instance.step("wait")
    free.set()


class Patient:
    def __init__(self, free: threading.Event) -> None:
        self._free = free

    def reset(self, problem) -> str:
        return ""

    def step(self, action: str) -> StepResult:
        assert self._free.wait(60)
        return StepResult(observation="free")

    def close(self) -> None: ...


PARENT = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
import odd_environments
from agentfly_lib.envs.spec import environment_spec

async def main():
    instance = await environment_spec(odd_environments.KIND).create()
    await instance.reset({"word": "ant"})
    daemon = (await instance.step("daemon")).observation
    asyncio.ensure_future(instance.step("hang_in_c"))
    await asyncio.sleep(0.1)
    print(instance.pid, daemon, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_nothing_is_left_when_we_are_killed(odd) -> None:
    folder = Path(odd.__file__).parent
    with subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        host, daemon = map(int, parent.stdout.readline().split())
        environment = psutil.Process(host).children()[0].pid
        assert all(map(lives, (host, environment, daemon)))
        parent.kill()
    await gone(host, environment, daemon)


def test_a_host_loads_nothing_heavy() -> None:
    heavy = ("torch", "ray", "vllm", "deepspeed", "prefect", "mlflow", "transformers", "pyarrow", "aiohttp")
    code = f"import sys, agentfly_lib.envs.host; print(sorted(set({heavy!r}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
