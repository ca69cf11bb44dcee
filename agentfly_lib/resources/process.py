"""Sandboxed processes: code that nobody trusts runs here, behind bubblewrap, and nowhere else.

    async with open_process(ProcessSpec(memory_mib=256)) as process:
        done = await process.run(["python3", "-c", "print(6 * 7)"], seconds=5)

One sandbox is one set of namespaces: no network, a read-only root that holds `/usr`, the libraries and this Python's
standard library and nothing else of the machine, an empty environment, a user of its own without privileges, a filter
of system calls, and file systems in memory of limited size at `/workspace` and `/tmp`. It lives as long as the block;
commands share its files, and so does a session, a process that stays and is asked again and again. Whatever happens to
our own process, the kernel ends the sandbox with it.

There is no unsandboxed way: without bubblewrap, `check` and `open_process` raise `SandboxUnavailableError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentfly_lib.errors import SandboxError, SandboxUnavailableError
from agentfly_lib.resources import keeper
from agentfly_lib.resources.control_group import ControlGroup
from agentfly_lib.resources.conversation import Completed, Conversation
from agentfly_lib.resources.sandbox import WORKSPACE, Box, Sandbox
from agentfly_lib.resources.seccomp import filter_program
from agentfly_lib.resources.spec import PoolLimits, opened

__all__ = ["PYTHON", "WORKSPACE", "Completed", "Process", "ProcessSpec", "open_process"]

START_SECONDS = 30.0
"""Limit for a sandbox to come up; it takes about a tenth of a second."""
KILL_SECONDS = 10.0

PYTHON = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
"""The interpreter that every sandbox holds: this one, without what is installed beside it."""

_KEEPER = "/run/keeper.py"
_MIB = 1 << 20
_OUR_PROCESSES = 4
"""Of a sandbox, beside those that it runs: bubblewrap's and the keeper."""
_FIRST_UID, _LAST_UID = 1_000_000_000, 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What code in a sandbox may use up. Sandboxes of equal specs are alike, so that one trajectory needs only one."""

    memory_mib: int = 512
    """Address space of one process; and where there are control groups, memory of all together, beside their files."""
    processes: int = 64
    """Processes and threads of the sandbox together."""
    cpus: float | None = None
    """Processors that it may use up, where there are control groups. None: as many as there are."""
    cpu_seconds: int = 300
    """Processor time of one process, over its whole life."""
    disk_mib: int = 64
    """Size of `/workspace`, and the same again for `/tmp` and for `/dev/shm`."""
    file_mib: int = 32
    """Longest file."""
    open_files: int = 256
    """Files that one process may have open."""
    read_only: tuple[str, ...] = ()
    """More folders of the machine that are visible inside, at the same place."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables, beside the few that every sandbox has. Nothing of our own environment goes in."""
    pool: PoolLimits = field(default_factory=lambda: PoolLimits(idle_seconds=0))
    """Sandboxes start in a tenth of a second, so none is kept."""

    def __post_init__(self) -> None:
        for name in ("memory_mib", "processes", "cpu_seconds", "disk_mib", "file_mib"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.open_files < 128:
            raise ValueError(f"open_files={self.open_files} must be at least 128")

    def check(self) -> None:
        """Raises `SandboxUnavailableError` if this machine has no bubblewrap."""
        _bubblewrap()

    async def create(self) -> Process:
        """A sandbox that runs. Raises `SandboxUnavailableError` or `SandboxError` if it cannot start."""
        process = Process(self)
        await process.start()
        return process

    def open(self) -> AbstractAsyncContextManager[Process]:
        """See `open_process`."""
        return open_process(self)


def open_process(spec: ProcessSpec) -> AbstractAsyncContextManager[Process]:
    """A sandbox, for the length of the block. Raises `SandboxUnavailableError` or `SandboxError` if it cannot start."""
    return opened(spec)


class Process(Sandbox):
    """A sandbox that runs commands. It is replaced, empty, by the next command if it has died."""

    python = PYTHON

    def __init__(self, spec: ProcessSpec) -> None:
        super().__init__()
        self.spec = spec

    async def _launch(self) -> Box:
        return await _Box.start(self.spec)


class _Box:
    """One bubblewrap process, and the conversation with the keeper inside."""

    def __init__(self, process: asyncio.subprocess.Process, information: int, group: ControlGroup | None) -> None:
        self._process = process
        self._information = information
        self._group = group
        # Descriptors of processes, which no other process can ever stand for, as it can for a number.
        self._processes: list[int] = []
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            self._processes.append(os.pidfd_open(process.pid))
        self._complaints: deque[str] = deque(maxlen=20)
        self._closing: asyncio.Future[None] | None = None
        self.conversation = Conversation(self._write, self._has_started)
        self._tasks = [asyncio.ensure_future(self._listen()), asyncio.ensure_future(self._note_complaints())]

    @classmethod
    async def start(cls, spec: ProcessSpec) -> _Box:
        program = _bubblewrap()
        uid = _private_uid()
        with contextlib.ExitStack() as files, contextlib.ExitStack() as undo:
            filtered = files.enter_context(_in_memory(_filter()))
            name = f"sandbox:x:{65534 if uid is None else uid}:{65534 if uid is None else uid}"
            users = files.enter_context(_in_memory(f"{name}::{WORKSPACE}:/bin/sh\n".encode()))
            information, told = os.pipe()
            files.callback(os.close, told)
            undo.callback(os.close, information)
            group = await _control_group(spec)
            if group is not None:
                undo.callback(_remove_soon, group)
            process = await asyncio.create_subprocess_exec(
                *_joining(group),
                program,
                *("--info-fd", str(told)),
                *_arguments(spec, uid, filtered, users),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=[filtered, users, told],
                start_new_session=True,
            )
            undo.pop_all()
        box = cls(process, information, group)
        try:
            async with asyncio.timeout(START_SECONDS):
                await box.conversation.ready
        except BaseException as error:
            await box.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"a sandbox did not start within {START_SECONDS:g} s") from error
            raise
        return box

    @property
    def dead(self) -> bool:
        return self._process.returncode is not None or self._tasks[0].done()

    async def close(self) -> None:
        """See `Box`. Goes on by itself if the caller is cancelled; all who call it wait for the same end."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                for descriptor in self._processes:
                    await _ended(descriptor)
                await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for descriptor in (*self._processes, self._information):
            os.close(descriptor)
        self._processes = []
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)

    def _kill(self) -> None:
        # When process 1 of the sandbox ends, the kernel ends all the others. It ends by itself if we are gone.
        assert self._process.stdin is not None
        self._process.stdin.close()
        for descriptor in self._processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def _has_started(self) -> None:
        # Told before anything runs inside.
        with contextlib.suppress(ProcessLookupError):
            self._processes.append(os.pidfd_open(json.loads(os.read(self._information, 4096))["child-pid"]))

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with contextlib.suppress(ConnectionError, ValueError):
            while data := await stream.read(1 << 16):
                self.conversation.feed(data)
        await self._fail()

    async def _fail(self) -> None:
        """It has ended: everyone who waits learns so."""
        self._kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await self._tasks[1]
        said = " ".join(" ".join(self._complaints).split())[-500:]
        if self.conversation.ready.done():
            error: Exception = SandboxError(f"the sandbox died, with all that was in it. {said}".strip())
        else:
            error = SandboxUnavailableError(f"bubblewrap cannot start a sandbox here: {said}")
        self.conversation.fail(error)

    async def _note_complaints(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._complaints.append(data.decode("utf-8", "replace"))


async def _control_group(spec: ProcessSpec) -> ControlGroup | None:
    """Made in a thread; one that is made after the caller was cancelled is removed again."""
    make = functools.partial(
        ControlGroup.make,
        memory_bytes=(spec.memory_mib + 3 * spec.disk_mib) * _MIB,
        processes=spec.processes + _OUR_PROCESSES,
        cpus=spec.cpus,
    )
    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_remove_made)
        raise


def _remove_made(made: asyncio.Future[ControlGroup | None]) -> None:
    if not made.cancelled() and made.exception() is None and (group := made.result()) is not None:
        _remove_soon(group)


def _remove_soon(group: ControlGroup) -> None:
    """In a thread: it may wait for what is still inside."""
    asyncio.get_running_loop().run_in_executor(None, group.remove)


def _joining(group: ControlGroup | None) -> list[str]:
    """A command before the sandbox's own that puts itself, and so all that it becomes and starts, into the group."""
    if group is None:
        return []
    join = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
    return ["/bin/sh", "-c", join, "sh", *group.entries, "--"]


async def _ended(descriptor: int) -> None:
    """Waits for the end of a process; for a namespace's first one that is the end of all in it."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: readable.done() or readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)


def _bubblewrap() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailableError(
            "code runs only in a bubblewrap sandbox, and `bwrap` is not installed here: "
            "`apt-get install bubblewrap` (or `dnf install bubblewrap`), and try again"
        )
    if filter_program() is None:
        raise SandboxUnavailableError(
            f"there is no sandbox for a {os.uname().machine} processor; x86-64 and arm64 work"
        )
    return found


def _filter() -> bytes:
    program = filter_program()
    assert program is not None  # `_bubblewrap` has looked
    return program


def _private_uid() -> int | None:
    """A user id that nobody has, if we are root and may take one; otherwise None, and a user namespace hides ours."""
    if os.geteuid() != 0:
        return None
    rows = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if not any(inside <= _FIRST_UID and inside + count > _LAST_UID for inside, _, count in rows):
        return None
    return _FIRST_UID + secrets.randbelow(_LAST_UID - _FIRST_UID)


def _arguments(spec: ProcessSpec, uid: int | None, filtered: int, users: int) -> list[str]:
    disk = str(spec.disk_mib * _MIB)
    settings = {
        "uid": uid,
        "cpu_seconds": spec.cpu_seconds,
        "memory_bytes": spec.memory_mib * _MIB,
        "processes": spec.processes if uid is not None or _counts_processes_per_namespace() else None,
        "file_bytes": spec.file_mib * _MIB,
        "open_files": spec.open_files,
        "environment": dict(spec.environment),
        "folder": WORKSPACE,
        "life_seconds": None,
        "dies_with_parent": True,
    }
    return [
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        # A root without privileges of its own is still the owner of root's files, so root gives its user up instead.
        *(("--unshare-user", "--uid", "65534", "--gid", "65534") if uid is None else ()),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--hostname", "sandbox"),
        *("--cap-drop", "ALL"),
        *(("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if uid is not None else ()),
        *("--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/run"),
        *_machine(),
        *("--perms", "0644", "--ro-bind-data", str(users), "/etc/passwd"),
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", disk, "--tmpfs", WORKSPACE),
        *("--perms", "1777", "--size", disk, "--tmpfs", "/tmp"),  # noqa: S108
        *("--perms", "1777", "--size", disk, "--tmpfs", "/dev/shm"),  # noqa: S108
        *_folders([*_python_folders(), *map(Path, spec.read_only)]),
        *("--ro-bind", keeper.__file__, _KEEPER),
        *("--remount-ro", "/"),
        *("--chdir", WORKSPACE, "--seccomp", str(filtered)),
        *("--", PYTHON, "-I", "-S", _KEEPER, json.dumps(settings)),
    ]


def _machine() -> list[str]:
    """What every program needs of the machine."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            arguments += ["--ro-bind", name, name]
    for name in ("/etc/alternatives", "/etc/ld.so.cache"):
        arguments += ["--ro-bind-try", name, name]
    return arguments


def _python_folders() -> list[Path]:
    """Where this Python's standard library and shared libraries are, unless that is under `/usr` anyway."""
    prefix = Path(sys.base_prefix).resolve()
    if prefix.is_relative_to("/usr"):
        return []
    return [prefix / name for name in ("bin", "lib", "lib64") if (prefix / name).is_dir()]


def _folders(folders: Sequence[Path]) -> list[str]:
    arguments: list[str] = []
    for folder in folders:
        for parent in list(reversed(folder.parents))[1:]:  # made here, so that the sandbox's user may enter them
            if str(parent) not in (WORKSPACE, "/tmp"):  # noqa: S108
                arguments += ["--perms", "0755", "--dir", str(parent)]
        arguments += ["--ro-bind", str(folder), str(folder)]
    return arguments


def _counts_processes_per_namespace() -> bool:
    """Older kernels count all processes of the user, ours included, and a limit would stop the first command."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)


@contextlib.contextmanager
def _in_memory(data: bytes) -> Any:
    """A descriptor from which bubblewrap reads this."""
    descriptor = os.memfd_create("agentfly")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
