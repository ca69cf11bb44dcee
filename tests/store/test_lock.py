"""One process at a time in a run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from agentfly_lib.errors import RunLockedError
from agentfly_lib.store import RunDirectory, RunLock

HOLDER = """
import sys
from pathlib import Path
from agentfly_lib.store import RunDirectory, RunLock
with RunLock(RunDirectory(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_directory_in_use_is_refused_and_the_process_is_named(tmp_path, holder):
    with pytest.raises(RunLockedError, match=f"is in use by process {holder.pid} on "), RunLock(RunDirectory(tmp_path)):
        pass


def test_a_killed_holder_leaves_no_lock_behind(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=30)
    with RunLock(RunDirectory(tmp_path)):
        pass


def test_the_same_process_cannot_take_it_twice(tmp_path):
    run = RunDirectory(tmp_path)
    with RunLock(run):
        with pytest.raises(RunLockedError, match=f"process {os.getpid()}"), RunLock(run):
            pass
        with pytest.raises(RunLockedError), RunLock(run):  # a refused attempt does not disturb the holder
            pass
    with RunLock(run):
        pass


def test_it_is_released_after_an_error(tmp_path):
    run = RunDirectory(tmp_path / "not" / "there" / "yet")
    with pytest.raises(KeyError), RunLock(run):
        raise KeyError("boom")
    with RunLock(run):
        pass
