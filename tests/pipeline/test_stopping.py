"""SIGTERM ends a flow in order wherever it strikes: while the loop waits, in a task, in a callback that swallows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, contextlib, os, signal, sys, threading, time
from agentfly_lib.pipeline import stopping
from agentfly_lib.pipeline.stopping import stopped_by_sigterm

stopping._GRACE_SECONDS = 0.2

class TerminationSignal(BaseException):
    pass

def prefects_own(number, frame):  # raises from whatever code runs, as Prefect's handler does
    raise TerminationSignal

def strike():
    os.kill(os.getpid(), signal.SIGTERM)

async def struck_task():
    try:
        strike()
        await asyncio.sleep(0)
    except BaseException as error:
        print("task saw", type(error).__name__)
        if where == "task that swallows":
            await asyncio.sleep(600)
        raise

async def work():
    if where == "idle":
        threading.Timer(0.3, strike).start()
        await asyncio.sleep(600)
    elif where == "callback":
        asyncio.get_running_loop().call_soon(strike)
        await asyncio.sleep(600)
    else:
        async with asyncio.TaskGroup() as group:
            group.create_task(struck_task())
            await asyncio.sleep(600)

async def flow():
    try:
        with stopped_by_sigterm():
            assert signal.getsignal(signal.SIGTERM) is prefects_own
            await work()
    finally:
        await asyncio.sleep(0.3)  # what is open is closed, which takes longer than the grace
        print("closed")
    print("not reached")

signal.signal(signal.SIGTERM, prefects_own)
for where in sys.argv[1:]:
    print("case", where)
    try:
        asyncio.run(flow())
    except BaseException as error:
        print("ended by", type(error).__name__)
    print("handler kept", signal.getsignal(signal.SIGTERM) is prefects_own)
"""


def test_everything_is_closed_wherever_it_strikes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    places = ["idle", "callback", "task", "task that swallows"]
    done = subprocess.run(
        [sys.executable, str(program), *places],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    cases = {case.splitlines()[0]: case.splitlines()[1:] for case in done.stdout.split("case ")[1:]}
    assert list(cases) == places, done.stderr
    for where, lines in cases.items():
        seen = ["task saw TerminationSignal"] if where.startswith("task") else []
        assert lines[:-2] == [*seen, "closed"], where
        assert lines[-2].startswith("ended by ")
        assert lines[-1] == "handler kept True"


async def test_the_first_signal_cancels_and_leaves_things_as_they_were() -> None:
    import asyncio
    import os
    import signal

    from agentfly_lib.pipeline.stopping import stopped_by_sigterm

    async def strike_and_wait() -> None:
        with stopped_by_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(600)

    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    own = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(strike_and_wait())
        assert seen == [signal.SIGTERM] * 2
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_another_thread_has_no_signals() -> None:
    import asyncio

    from agentfly_lib.pipeline.stopping import stopped_by_sigterm

    async def inside() -> bool:
        with stopped_by_sigterm():
            await asyncio.sleep(0)
        return True

    assert await asyncio.to_thread(asyncio.run, inside())


def test_what_sigterm_raised_is_known_among_others() -> None:
    from agentfly_lib.pipeline.stopping import raised_by

    class Terminated(BaseException):
        pass

    assert raised_by(Terminated(), Terminated)
    assert raised_by(BaseExceptionGroup("a", [ValueError(), BaseExceptionGroup("b", [Terminated()])]), Terminated)
    assert not raised_by(ExceptionGroup("a", [ValueError()]), Terminated)
    assert not raised_by(KeyboardInterrupt(), Terminated)
