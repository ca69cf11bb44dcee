"""Worker processes that can be killed: a function that hangs, in C code too, costs one call and nothing else.

Workers start when they are first needed, as fresh interpreters (no fork of a process with threads, no import of the
caller's `__main__`), stay for the next call, and are replaced after a kill or a crash. The pool is independent of event
loops; each call occupies a thread that waits for its worker.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from agentfly_lib.resources.conversation import ending

__all__ = ["CallDied", "CallFailed", "CallTimedOut", "NoWorker", "NotImportable", "WorkerPool", "shared_pool"]

START_SECONDS = 120.0
"""Limit for a worker's start and for importing a function's module; the call's own time begins after that."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from agentfly_lib.rewards.worker import main; main(int(sys.argv[2]))"
)


class CallFailed(Exception):
    """The function raised, or its process died; the message says which."""


class CallDied(CallFailed):
    """The process died while the function ran."""


class CallTimedOut(Exception):
    """The function did not return in time; its process was killed."""


class NoWorker(CallTimedOut):
    """The function was not even called: no worker was free, started or imported it in time."""


class NotImportable(Exception):
    """No module of that name in a fresh interpreter, or no such function in it."""


class WorkerPool:
    """At most `size` processes, started on demand. Safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    def call(self, target: str, keywords: dict[str, Any], *, seconds: float, wait_seconds: float | None = None) -> Any:
        """Calls `module:function` in a worker; blocks until it has returned, failed or been killed.

        seconds: limit of the call itself, not of waiting for a free worker: that is `wait_seconds`. No call before it
        takes longer than its own limit, so that without one it ends too.
        Raises `CallTimedOut`, `CallFailed` or `NotImportable`.
        """
        if not self._slots.acquire(timeout=wait_seconds):
            raise NoWorker(f"found no free worker within {wait_seconds:g} s")
        try:
            worker = self._take()
            healthy = False
            try:
                result = worker.call(target, keywords, seconds)
                healthy = True
                return result
            except NotImportable:
                healthy = True
                raise
            except _Raised as error:
                healthy = True
                raise CallFailed(str(error)) from error
            except CallDied as error:
                if self._closed:
                    raise CallFailed("the pool of reward workers was closed") from error
                raise
            finally:
                self._give_back(worker, healthy=healthy)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Kills every worker; calls in flight fail."""
        with self._lock:
            self._closed = True
            workers = [*self._idle, *self._busy]
            self._idle.clear()
        for worker in workers:
            worker.kill()

    def _take(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise CallFailed("the pool of reward workers is closed")
            worker = self._idle.pop() if self._idle else None
            if worker is None or not worker.alive:
                worker = _Worker()
            self._busy.add(worker)
            return worker

    def _give_back(self, worker: _Worker, *, healthy: bool) -> None:
        with self._lock:
            self._busy.discard(worker)
            if healthy and not self._closed:
                self._idle.append(worker)
                return
        worker.kill()


class _Raised(Exception):
    """The function raised; its worker is fine."""


class _Worker:
    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle, and a kill takes its children too
            )
        self._started = False
        self._loaded: set[str] = set()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, target: str, keywords: dict[str, Any], seconds: float) -> Any:
        if not self._started or target not in self._loaded:
            self._load(target)
        self._send(("call", target, keywords, seconds))
        try:
            return self._receive(seconds, "return")
        except EOFError as error:
            raise CallDied(self._epitaph()) from error

    def _load(self, target: str) -> None:
        try:
            if not self._started:
                self._receive(START_SECONDS, "start")
                self._started = True
            self._send(("load", target, list(sys.path)))
            self._receive(START_SECONDS, f"import {target}")
        except CallTimedOut as error:
            raise NoWorker(str(error)) from error
        except EOFError as error:
            raise CallFailed(self._epitaph()) from error
        self._loaded.add(target)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except (OSError, EOFError) as error:
            raise CallFailed(self._epitaph()) from error
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise _Raised(f"an argument cannot be sent to a worker process: {error}") from error

    def _receive(self, seconds: float, what: str) -> Any:
        """Raises `EOFError` if the process has died."""
        try:
            if not self._connection.poll(seconds):
                raise CallTimedOut(f"did not {what} within {seconds:g} s and was killed")
            kind, *rest = self._connection.recv()
        except OSError as error:
            raise EOFError from error
        except Exception as error:
            if isinstance(error, CallTimedOut | EOFError):
                raise
            raise CallFailed(f"its result cannot be read: {type(error).__name__}: {error}") from error
        if kind == "missing":
            raise NotImportable(rest[0])
        if kind == "error":
            raise _Raised(rest[0])
        return rest[0] if rest else None

    def _epitaph(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        return f"the worker process {ending(self._process.returncode)}"


@functools.cache
def shared_pool() -> WorkerPool:
    """The pool of this process: as many workers as processors, at least two. Killed at exit."""
    pool = WorkerPool(max(2, os.cpu_count() or 1))
    atexit.register(pool.close)
    return pool
