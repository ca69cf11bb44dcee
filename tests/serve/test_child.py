"""A child's whole session ends with it, and its last words are kept."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil

from agentfly_lib.serve.child import Child, Process, tail

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whom it starts, inherits that
other = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
print("pid", other.pid, flush=True)
time.sleep(600)
"""


def child(tmp_path: Path, program: str) -> Child:
    return Child(
        name="it",
        command=[sys.executable, "-c", program],
        log=tmp_path / "logs" / "it.log",
        healthy=lambda: True,
        environment={"GREETING": "hello"},
        folder=tmp_path,
    )


def until(done, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    process = Process(child(tmp_path, STUBBORN))
    log = process.child.log
    until(lambda: "up" in log.read_text() and "pid" in log.read_text())
    other = psutil.Process(int(log.read_text().split("pid ")[1].split()[0]))
    process.ask_to_end()
    process.end(0.3)
    assert process.ended() == -9
    until(lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE)


def test_one_that_ends_by_itself_is_not_waited_for(tmp_path: Path) -> None:
    process = Process(child(tmp_path, "import os; print(os.environ['GREETING'], os.getcwd())"))
    until(lambda: process.ended() is not None)
    process.end(600.0)
    assert process.ended() == 0
    assert process.child.log.read_text().split() == ["hello", str(tmp_path)]


def test_a_log_is_kept_over_starts_and_its_end_is_shown(tmp_path: Path) -> None:
    for _ in range(2):
        process = Process(child(tmp_path, "for n in range(2000): print('line', n)"))
        until(lambda process=process: process.ended() is not None)
    log = process.child.log
    assert log.read_text().count("line 1999\n") == 2
    assert tail(log, lines=2) == "  line 1998\n  line 1999"
    assert tail(tmp_path / "none") == ""
