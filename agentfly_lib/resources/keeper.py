"""The first process of a sandbox: starts commands inside it, bounds them, and ends them whole.

A program of its own (standard library only; run as `python -I -S keeper.py`, or from its text with `-c`), because it
works on the other side of the wall; Python 3.9 is enough for it. It is process 1 of its namespace: nothing inside can
kill it, nobody else holds the ends of its pipes, and when it ends the kernel ends all others. Only beside a container's
own service it is not; there, too, orphans of what it started come to it. Nothing can trace it.

Frames on stdin and stdout: 4 bytes of length, big endian, then JSON. The first frame out is `{"ready": true}`; then

    {"id", "op": "run", "argv", "stdin", "seconds", "max_bytes"}                 a command, until it exits
    {"id", "op": "ask", "session", "argv", "message", "seconds", "max_bytes"}    one line to a process that stays, which
                                                                                 reads fd 3 and answers a line on fd 4
    {"id", "op": "quiet"}                                                        ends everything, and leaves the files
    {"id", "op": "cancel", "target"}
    -> {"id", "stdout", "stderr", "cut_stdout", "cut_stderr", "exit", "timed_out", "reply", "fresh"} or {"id", "error"}

At its limit a command is ended with all that it started. Every process is stopped first, so that none can fork its way
out of the search; then the command's session, its descendants, and orphans (whose origin nobody knows) are killed; then
the rest goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import selectors
import signal
import struct
import sys
import time
from typing import Any, NoReturn

CHUNK = 1 << 16
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
REPLY_BYTES = 1 << 22
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/workspace",
    "TMPDIR": "/tmp",  # noqa: S108  the sandbox's own
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Pipe:
    """Bytes that come out of a process: the first `limit` are kept, the others counted."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.limit = limit
        self.kept = bytearray()
        self.cut = 0
        os.set_blocking(descriptor, False)

    def read(self) -> bool | None:
        """Takes what is there; False at the end, None if there is nothing now."""
        try:
            data = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return False
        room = max(0, self.limit - len(self.kept))
        self.kept += data[:room]
        self.cut += len(data) - len(data[:room])
        return bool(data)

    def drain(self) -> None:
        deadline = time.monotonic() + 1.0  # what is left in a pipe is little; a writer that never stops ends here
        while self.read() and time.monotonic() < deadline:
            pass

    def text(self) -> str:
        return bytes(self.kept).decode("utf-8", "replace")


class Child:
    """A command that runs, or a session that stays, and the request it is working on."""

    def __init__(self, pid: int, inputs: int, outputs: tuple[Pipe, Pipe], reply: Pipe | None = None) -> None:
        self.pid = pid
        self.inputs = inputs
        self.outputs = outputs
        self.reply = reply
        self.request: dict[str, Any] | None = None
        self.deadline = 0.0
        self.pending = b""
        self.fresh = True

    def descriptors(self) -> list[int]:
        pipes = [*self.outputs, *([self.reply] if self.reply else [])]
        return [pipe.descriptor for pipe in pipes]


class Keeper:
    """All that runs in the sandbox, in one loop over what can be read and written."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.selector = selectors.DefaultSelector()
        self.children: dict[int, Child] = {}  # by process id
        self.sessions: dict[str, Child] = {}
        self.incoming = bytearray()
        self.requests: list[dict[str, Any]] = []
        self.wake, wake_in = os.pipe()
        for descriptor in (self.wake, wake_in):
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        life = settings["life_seconds"]
        self.end_of_life = None if life is None else time.monotonic() + life

    def serve(self) -> NoReturn:
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ, self.read_requests)
        self.selector.register(self.wake, selectors.EVENT_READ, self.read_wake)
        send({"ready": True})
        while True:
            for key, _ in self.selector.select(self.patience()):
                key.data()
            # Only now: a request may close descriptors, whose events of this turn must have been dealt with.
            while self.requests:
                self.accept(self.requests.pop(0))
            self.reap()
            self.expire()

    def patience(self) -> float | None:
        deadlines = [child.deadline for child in self.children.values() if child.request]
        deadlines += [self.end_of_life] if self.end_of_life is not None else []
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def read_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, CHUNK)

    def read_requests(self) -> None:
        try:
            data = os.read(0, CHUNK)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)  # the other side is gone, and everything here goes with us
        self.incoming += data
        while len(self.incoming) >= 4:
            (length,) = struct.unpack_from(">I", self.incoming)
            if len(self.incoming) < 4 + length:
                return
            self.requests.append(json.loads(bytes(self.incoming[4 : 4 + length])))
            del self.incoming[: 4 + length]

    def accept(self, request: dict[str, Any]) -> None:
        if request["op"] == "cancel":
            for child in list(self.children.values()):
                if child.request and child.request["id"] == request["target"]:
                    self.end(child)
            return
        if request["op"] == "quiet":
            send(answer_of(request["id"], code=0) if self.quieten() else {"id": request["id"], "error": "it goes on"})
            return
        try:
            child = self.session(request) if request["op"] == "ask" else self.start(request)
        except OSError as error:
            send({"id": request["id"], "error": f"cannot start {request['argv'][0]}: {error.strerror or error}"})
            return
        child.request, child.deadline = request, time.monotonic() + request["seconds"]
        for pipe in child.outputs:
            pipe.limit, pipe.kept, pipe.cut = request["max_bytes"], bytearray(), 0
        text = request["message"] + "\n" if request["op"] == "ask" else request["stdin"]
        child.pending = text.encode("utf-8", "replace")  # half of a surrogate pair is no character
        with contextlib.suppress(KeyError):
            self.selector.unregister(child.inputs)  # a session may have answered before it read all
        self.selector.register(child.inputs, selectors.EVENT_WRITE, lambda: self.write(child))

    def session(self, request: dict[str, Any]) -> Child:
        child = self.sessions.get(request["session"])
        if child is not None:
            if child.request is not None:
                raise OSError(0, "it is busy with another request")
            child.fresh = False
            return child
        child = self.sessions[request["session"]] = self.start(request)
        return child

    def start(self, request: dict[str, Any]) -> Child:
        """Forks; a fork that fails because orphans use up the limit is tried once more without them."""
        asks = request["op"] == "ask"
        out, err, inputs = os.pipe(), os.pipe(), os.pipe()
        reply = os.pipe() if asks else None
        null = os.open("/dev/null", os.O_RDONLY)
        theirs = [null, out[1], err[1], inputs[0], reply[1]] if reply else [inputs[0], out[1], err[1]]
        ours = [inputs[1], out[0], err[0], *([reply[0]] if reply else [])]
        try:
            try:
                pid = os.fork()
            except BlockingIOError:
                self.kill(set())
                pid = os.fork()
            if pid == 0:
                self.become(request["argv"], theirs)
        except OSError:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in {null, *theirs}:
                os.close(descriptor)
        os.set_blocking(inputs[1], False)
        outputs = (Pipe(out[0], 0), Pipe(err[0], 0))
        child = Child(pid, inputs[1], outputs, Pipe(reply[0], REPLY_BYTES) if reply else None)
        self.children[pid] = child
        for pipe in outputs:
            self.selector.register(pipe.descriptor, selectors.EVENT_READ, lambda pipe=pipe: self.take(pipe))
        if (replies := child.reply) is not None:
            self.selector.register(replies.descriptor, selectors.EVENT_READ, lambda: self.answer(child, replies))
        return child

    def become(self, argv: list[str], descriptors: list[int]) -> NoReturn:
        """The child's side of a fork; never returns."""
        try:
            os.setsid()
            high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in descriptors]
            for target, descriptor in enumerate(high):
                os.dup2(descriptor, target, inheritable=True)
            os.closerange(len(high), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            limit(resource.RLIMIT_CPU, self.settings["cpu_seconds"])
            limit(resource.RLIMIT_AS, self.settings["memory_bytes"])
            os.chdir(self.settings["folder"])
            given = self.settings["environment"]
            os.execvpe(argv[0], argv, dict(os.environ) if given is None else {**ENVIRONMENT, **given})  # noqa: S606
        except BaseException as error:  # noqa: BLE001  this is another process, and there is only one way out of it
            reason = getattr(error, "strerror", None) or error
            with contextlib.suppress(OSError):
                os.write(2, f"{argv[0]}: {reason}\n".encode("utf-8", "replace"))
        os._exit(127)

    def write(self, child: Child) -> None:
        try:
            child.pending = child.pending[os.write(child.inputs, child.pending[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            child.pending = b""  # it reads no more, which is its own business
        if not child.pending:
            self.selector.unregister(child.inputs)
            if child.reply is None:
                os.close(child.inputs)
                child.inputs = -1

    def take(self, pipe: Pipe) -> None:
        if pipe.read() is False:
            self.selector.unregister(pipe.descriptor)

    def answer(self, child: Child, pipe: Pipe) -> None:
        """A session has said something: its whole line is the reply, if anybody asked."""
        if pipe.read() is False:
            self.selector.unregister(pipe.descriptor)
        line, found, _ = bytes(pipe.kept).partition(b"\n")
        if found and child.request:
            pipe.kept.clear()
            self.finish(child, reply=line.decode("utf-8", "replace"))
        elif not child.request or pipe.cut:
            pipe.kept.clear()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is not None:  # the others are orphans
                self.finish(child, code=os.waitstatus_to_exitcode(status))
                self.forget(child)

    def expire(self) -> None:
        now = time.monotonic()
        if self.end_of_life is not None and self.end_of_life <= now:
            os._exit(0)  # a signal would not end the first process of a namespace
        for child in list(self.children.values()):
            if child.request and child.deadline <= now:
                self.end(child, timed_out=True)

    def end(self, child: Child, *, timed_out: bool = False) -> None:
        """Kills a command or session with all that it started, and answers its request."""
        self.children.pop(child.pid, None)
        self.kill({child.pid})
        self.finish(child, timed_out=timed_out, code=-signal.SIGKILL)
        self.forget(child)

    def quieten(self) -> bool:
        """Ends everything but us, at one instant; False if that cannot be, as beside a service."""
        if self.pid != 1:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        deadline = time.monotonic() + 5.0
        while any(name.isdigit() and name != "1" for name in os.listdir("/proc")):
            if time.monotonic() > deadline:
                return False
            self.reap()
            time.sleep(0.001)
        self.reap()
        return True

    def kill(self, roots: set[int]) -> None:
        """Ends these processes, what belongs to them, and orphans."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)  # everything but us, at one instant
        victims: set[int] = set()
        try:
            victims = self.victims(roots)
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGCONT)
        deadline = time.monotonic() + 1.0  # until they are buried they count against the limit of processes
        while any(os.path.exists(f"/proc/{pid}") for pid in victims) and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.001)

    def victims(self, roots: set[int]) -> set[int]:
        """The roots, what shares their session, orphans, and all descendants of these."""
        parents: dict[int, int] = {}
        found: set[int] = set()
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (1, self.pid):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    with open(f"/proc/{name}/stat", "rb") as file:
                        fields = file.read().rpartition(b")")[2].split()
                    pid, parent, session = int(name), int(fields[1]), int(fields[3])
                    parents[pid] = parent
                    if pid in roots or session in roots or (parent == self.pid and pid not in self.children):
                        found.add(pid)
        size = -1
        while size != len(found):
            size = len(found)
            found |= {pid for pid, parent in parents.items() if parent in found}
        return found

    def finish(
        self, child: Child, *, reply: str | None = None, code: int | None = None, timed_out: bool = False
    ) -> None:
        """Answers the request that the child was working on."""
        request, child.request = child.request, None
        if request is None:
            return
        for pipe in child.outputs:
            pipe.drain()
        out, err = child.outputs
        more = {"timed_out": timed_out, "reply": reply, "fresh": child.fresh}
        send(answer_of(request["id"], code=code, out=out, err=err, **more))

    def forget(self, child: Child) -> None:
        for name in [name for name, session in self.sessions.items() if session is child]:
            del self.sessions[name]
        for descriptor in [*child.descriptors(), child.inputs]:
            if descriptor >= 0:
                with contextlib.suppress(KeyError):
                    self.selector.unregister(descriptor)
                os.close(descriptor)


def answer_of(
    number: int, *, code: int | None, out: Pipe | None = None, err: Pipe | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": number,
        "stdout": out.text() if out else "",
        "stderr": err.text() if err else "",
        "cut_stdout": out.cut if out else 0,
        "cut_stderr": err.cut if err else 0,
        "exit": code,
        "timed_out": False,
        "reply": None,
        "fresh": True,
        **more,
    }


def send(message: dict[str, Any]) -> None:
    """Writes a frame."""
    data = json.dumps(message).encode()
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(1, data) :]


def confine(settings: dict[str, Any]) -> None:
    """Gives up what was needed to get here, and sets the limits that everything inside inherits."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine runs out of memory, this goes first
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    if settings["dies_with_parent"]:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user has cleared it
    if os.getpid() != 1:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody inside can trace us or open our pipes
    os.umask(0o022)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, settings["file_bytes"])
    limit(resource.RLIMIT_NOFILE, settings["open_files"])
    limit(resource.RLIMIT_MEMLOCK, 0)
    limit(resource.RLIMIT_MSGQUEUE, 0)
    limit(resource.RLIMIT_NPROC, settings["processes"])


def limit(kind: int, value: int | None) -> None:
    """Sets a limit of this process and what it starts; None leaves it as it is."""
    if value is not None:
        resource.setrlimit(kind, (value, value))


def main() -> None:
    settings = json.loads(sys.argv[1])
    confine(settings)
    Keeper(settings).serve()


if __name__ == "__main__":
    main()
