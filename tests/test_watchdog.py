"""The watchdog kills what uses the folder of a parent that is gone, and spares everyone else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentfly_lib import watchdog

HOLDER = "import sys, time; held = open(sys.argv[1], 'w'); print('holding', flush=True); time.sleep(60)"


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


@pytest.fixture
def holder():
    """`holder(path)`: a process that has a file open there."""
    started = []

    def start(path: Path) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)


def test_it_finds_processes_by_the_files_they_hold(folder, holder):
    inside, outside = holder(folder / "log"), holder(folder.parent / "session-of-another.log")
    assert inside.pid in watchdog.processes_using(folder)
    assert outside.pid not in watchdog.processes_using(folder)


def test_a_sweep_kills_the_users_and_removes_the_folder(folder, holder):
    inside, outside = holder(folder / "log"), holder(folder.parent / "other")
    watchdog.sweep_folder(folder, spare=None, seconds=5)
    assert inside.wait(10) == -9
    assert outside.poll() is None
    assert not folder.exists()


def test_a_living_parent_and_its_children_are_spared(folder, holder):
    child = holder(folder / "log")
    watchdog.sweep_folder(folder, spare=watchdog.parent_of(child.pid), seconds=0.3)
    assert child.poll() is None


def test_it_acts_when_its_input_closes(folder):
    command = [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), str(folder)]
    dog = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert dog.stdin is not None
    assert folder.exists()
    dog.stdin.close()
    assert dog.wait(10) == 0
    assert not folder.exists()


def test_a_parent_that_was_gone_before_it_looked_is_not_taken_for_another(folder, holder):
    """Its children are then those of whoever adopts orphans, and must not be spared."""
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait(60)
    inside = holder(folder / "log")
    command = [sys.executable, "-I", "-S", watchdog.__file__, str(gone.pid), str(folder)]
    done = subprocess.run(command, stdin=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0
    assert inside.wait(10) == -9


def test_the_marked_are_killed_and_nobody_else(monkeypatch):
    def sleeper(**variables: str) -> subprocess.Popen:
        code = "import time; print('up', flush=True); time.sleep(60)"
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=os.environ | variables, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    marked, other, unmarked = sleeper(LEASH_TEST="1"), sleeper(LEASH_TEST="12"), sleeper()
    try:
        assert watchdog.processes_marked("LEASH_TEST=1") == {marked.pid}
        watchdog.sweep(lambda: watchdog.processes_marked("LEASH_TEST=1"), spare=None, seconds=5)
        assert marked.wait(10) == -9
        assert (other.poll(), unmarked.poll()) == (None, None)
    finally:
        for process in (marked, other, unmarked):
            process.kill()
            process.wait(10)
