"""Limits over a whole sandbox, where this machine lets us set them, and whose what is left is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentfly_lib import doctor
from agentfly_lib.resources import ProcessSpec, control_group, open_process
from agentfly_lib.resources import process as process_module
from agentfly_lib.resources.control_group import ControlGroup, left_groups
from agentfly_lib.resources.leftovers import find, reap
from agentfly_lib.resources.owner import Owner, this_owner

PROGRAM = """
import os, time
began = time.monotonic()
pids = []
for _ in range(6):
    if not (pid := os.fork()):
        x = bytearray(30 << 20)
        while time.monotonic() - began < 2: pass
        os._exit(0)
    pids.append(pid)
ends = [os.waitpid(pid, 0)[1] for pid in pids]
print(ends.count(9), sum(os.times()[2:4]) / (time.monotonic() - began))
"""


@pytest.fixture(scope="module")
def groups(sandboxes: None) -> None:
    group = ControlGroup.make(memory_bytes=1 << 26, processes=8, cpus=1.0)
    if group is None:
        pytest.skip("this process may not make control groups here")
    group.remove()


async def test_processes_of_a_sandbox_share_its_memory_and_its_processors(groups: None):
    async with open_process(ProcessSpec(memory_mib=64, disk_mib=8, cpus=0.5)) as process:
        done = await process.run([process.python, "-I", "-S", "-c", PROGRAM], seconds=60)
        assert done.stderr == ""
        killed, used = done.stdout.split()
        assert int(killed) >= 3, "6 x 30 MiB do not fit into 64 + 3 x 8 MiB"
        assert float(used) < 0.8
        assert any(owner.pid == os.getpid() for _, owner in left_groups())
    assert not any(owner.pid == os.getpid() for _, owner in left_groups())


LEAVE = """
import asyncio, os, signal
from agentfly_lib.resources import ProcessSpec
async def main():
    await ProcessSpec().create()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_the_groups_of_a_killed_process_are_found_and_removed(groups: None):
    command = [sys.executable, "-c", LEAVE]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    mine = ControlGroup.make(memory_bytes=1 << 26, processes=8, cpus=None)
    assert mine is not None
    left = [leftover for leftover in find() if leftover.state == "left behind" and leftover.group]
    assert left
    removed = reap(find())
    assert {leftover.name for leftover in left} <= {leftover.name for leftover in removed}
    assert mine.folders[0].exists(), "it is in use"
    mine.remove()
    assert not mine.folders[0].exists()


def test_version_2_gets_its_limits_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control_group, "_places", lambda: {"unified": tmp_path})
    group = ControlGroup.make(memory_bytes=1 << 26, processes=8, cpus=0.5)
    assert group is not None
    (folder,) = group.folders
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "memory.max": "67108864",
        "pids.max": "8",
        "cpu.max": "50000 100000",
    }
    assert group.entries == [str(folder / "cgroup.procs")]
    assert left_groups() == [(group, Owner(**{**_fields(this_owner()), "run": ""}))]


def test_a_machine_without_lets_sandboxes_do_without(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control_group, "_places", lambda: None)
    assert ControlGroup.make(memory_bytes=1 << 26, processes=8, cpus=0.5) is None
    assert left_groups() == []


class TestOwner:
    def test_labels_and_back(self):
        assert Owner.of(this_owner().labels() | {"other": "1"}) == this_owner()
        assert Owner.of({"agentfly.pid": "1"}) is None

    def test_this_process_is_not_gone(self):
        assert this_owner().gone is False

    @pytest.mark.parametrize(
        ("changes", "gone"),
        [
            ({"pid": 2**22 + 1}, True),
            ({"started": "1"}, True),  # another process has got its id
            ({"boot": "another"}, True),
            ({"host": "another"}, None),
            ({"namespace": "pid:[1]"}, None),
        ],
    )
    def test_another_is_gone_only_if_that_can_be_seen(self, changes: dict[str, object], gone: bool | None):
        assert Owner(**{**_fields(this_owner()), **changes}).gone is gone  # type: ignore[arg-type]


def _fields(owner: Owner) -> dict[str, object]:
    return {name: getattr(owner, name) for name in Owner.__slots__}


async def test_one_that_is_made_after_its_caller_was_cancelled_is_removed(monkeypatch):
    begun, go_on, removed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        @staticmethod
        def make(**_: object) -> Slow:
            begun.set()
            assert go_on.wait(10)
            return Slow()

        def remove(self) -> None:
            removed.set()

    monkeypatch.setattr(process_module, "_bubblewrap", lambda: "bwrap")
    monkeypatch.setattr(process_module, "ControlGroup", Slow)
    open_before = len(os.listdir("/proc/self/fd"))
    starting = asyncio.ensure_future(ProcessSpec().create())
    await asyncio.to_thread(begun.wait, 10)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    go_on.set()
    assert await asyncio.to_thread(removed.wait, 10)
    assert len(os.listdir("/proc/self/fd")) <= open_before  # others' may be collected meanwhile


@pytest.mark.usefixtures("sandboxes")
def test_the_doctor_says_where_limits_are_of_each_process_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control_group, "_places", lambda: None)
    (check,) = doctor._sandbox()
    assert check.level == "warn"
    assert "for each of its processes alone" in check.text
