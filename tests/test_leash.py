"""What was started inside a leash ends with the process that held it, within another leash too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from agentfly_lib.watchdog import parent_of

INNER = """
import os, subprocess, sys, time
from agentfly_lib.leash import leash, marked_processes
assert marked_processes() == set() or sys.argv[1] == "inside"
with leash():
    mark = os.environ["AGENTFLY_LEASH"]
    with leash():
        assert os.environ["AGENTFLY_LEASH"] == mark  # one leash is enough
        far = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        assert far.pid in marked_processes()
    assert os.environ["AGENTFLY_LEASH"] == mark
    print(far.pid, flush=True)
    time.sleep(600)
"""
OUTER = f"""
import subprocess, sys, time
from agentfly_lib.leash import leash
with leash():
    inner = subprocess.Popen([sys.executable, "-c", {INNER!r}, "inside"], start_new_session=True)
    print(inner.pid, flush=True)
    time.sleep(600)
"""


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 120
    while parent_of(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.05)


def start(program: str) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen([sys.executable, "-c", program, "alone"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = 2 if program == OUTER else 1
    return process, [int(process.stdout.readline()) for _ in range(lines)]


def test_kill_9_leaves_nothing() -> None:
    process, (far,) = start(INNER)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until_gone(far)


def test_kill_9_of_whoever_holds_a_leash_around_another_leaves_nothing_either() -> None:
    """The outer watchdog kills the inner holder; the inner one's own watchdog must live to end what that held."""
    process, (inner, far) = start(OUTER)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until_gone(inner)
    until_gone(far)
