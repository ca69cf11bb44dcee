"""An environment as the rest of the program uses it: awaited, bounded in time, and with its failures sorted.

A `ProcessInstance` is the near end of `envs.host`: whatever the game does, its process and all that it has started are
killed at a time limit, when a call is cancelled, and at the end. A `ThreadInstance` runs in this process. Both serve
one episode at a time and any number of them, one after another, until something goes wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from agentfly_lib.bounded import call_in_thread
from agentfly_lib.envs import wire
from agentfly_lib.envs.environment import Environment, EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.registry import reference_of
from agentfly_lib.errors import EnvironmentFailure, InfrastructureError

__all__ = ["EnvironmentInstance", "ProcessInstance", "ThreadInstance", "settings_values"]

CLOSE_SECONDS = 10.0
"""Limit for an environment to close by itself; then it is killed."""
_KILL_SECONDS = 10.0
_SHOWN_COMPLAINTS = 600

Value = TypeVar("Value")


class EnvironmentInstance(Protocol):
    """One environment, somewhere."""

    async def begin(self, episode: str) -> None:
        """Another episode is about to use it; `reset` makes it new."""
        ...

    async def reset(self, columns: Mapping[str, Any]) -> str:
        """Begins the episode of a problem, and returns the first observation. Raises `EnvironmentFailure`."""
        ...

    async def step(self, action: str) -> StepResult:
        """Does one action. Raises `EnvironmentFailure`; the instance is not used again then."""
        ...

    async def healthy(self) -> bool:
        """It can serve another episode."""
        ...

    async def close(self) -> None:
        """Frees what it holds, dead or alive. A second call does nothing."""
        ...


def settings_values(settings: EnvironmentSettings) -> dict[str, Any]:
    """What `EnvironmentKind.make` is called with."""
    return {name: getattr(settings, name) for name in type(settings).model_fields}


class ProcessInstance:
    """An environment in a process of its own."""

    def __init__(self, kind: EnvironmentKind, process: asyncio.subprocess.Process, step_seconds: float) -> None:
        self._kind = kind
        self._step_seconds = step_seconds
        self._process = process
        self._broken = False
        self._closed = False
        self._complaints: deque[bytes] = deque(maxlen=20)
        self._noting = asyncio.ensure_future(self._note_complaints())

    @classmethod
    async def start(cls, kind: EnvironmentKind, settings: EnvironmentSettings) -> ProcessInstance:
        """Starts a host and makes the environment in it. Raises `InfrastructureError` if it cannot start."""
        where = f"environment:{kind.name}"
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
                limit=wire.MAX_LINE_BYTES,
            )
        except OSError as error:
            raise InfrastructureError(f"no process for {kind.name} can be started: {error}", where=where) from error
        instance = cls(kind, process, kind.step_limit(settings))
        message = {
            "op": "make",
            "kind": reference_of(kind),
            "settings": settings.model_dump(mode="json"),
            "memory_mib": kind.memory_mib,
        }
        try:
            await instance._ask(message, kind.start_limit(settings), doing="start")
        except BaseException as error:
            await asyncio.shield(instance._kill())
            if isinstance(error, EnvironmentFailure):
                raise InfrastructureError(f"{error}", where=where) from error
            raise
        return instance

    @property
    def pid(self) -> int:
        """Of the host; the environment itself is its child."""
        return self._process.pid

    async def begin(self, episode: str) -> None:
        """Nothing to do: `reset` makes it new."""

    async def reset(self, columns: Mapping[str, Any]) -> str:
        """See `EnvironmentInstance`."""
        answer = await self._ask({"op": "reset", "columns": dict(columns)}, self._step_seconds, doing="reset")
        return self._checked(lambda: wire.observation_text(answer.get("observation")))

    async def step(self, action: str) -> StepResult:
        """See `EnvironmentInstance`."""
        answer = await self._ask({"op": "step", "action": action}, self._step_seconds, doing="step")
        return self._checked(lambda: wire.result_of(answer))

    async def healthy(self) -> bool:
        """Its process lives, and nothing has gone wrong in it."""
        return not self._broken and not self._closed and self._process.returncode is None

    async def close(self) -> None:
        """Lets the environment close by itself, for a short while, and ends its process."""
        if self._closed:
            return
        self._closed = True
        if not self._broken and self._process.returncode is None:
            with contextlib.suppress(EnvironmentFailure):
                await self._ask({"op": "close"}, CLOSE_SECONDS, doing="close")
        await asyncio.shield(self._kill())

    def _checked(self, read: Callable[[], Value]) -> Value:
        try:
            return read()
        except wire.Nonsense as error:
            self._broken = True
            raise self._failure(f"gave an invalid answer: {error}") from error

    async def _ask(self, message: Mapping[str, Any], seconds: float, *, doing: str) -> dict[str, Any]:
        """One question and its answer. Whatever goes wrong, the instance is not used again."""
        if self._broken:
            raise self._failure("was ended after an earlier failure")
        healthy = False
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(wire.dump(message))
            if "failed" in answer:
                raise self._failure(f"failed to {doing}: {answer['failed']}")
            healthy = True
            return answer
        except TimeoutError as error:
            raise self._failure(f"did not {doing} within {seconds:g} s and was killed") from error
        except wire.Nonsense as error:
            raise self._failure(f"gave an invalid answer: {error}") from error
        finally:
            if not healthy:
                self._broken = True
                await asyncio.shield(self._kill())

    async def _exchange(self, line: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            await self._process.stdin.drain()
            reply = await self._process.stdout.readline()
        except ConnectionError:
            reply = b""
        except ValueError as error:  # the reader's limit
            raise wire.Nonsense(str(error)) from error
        if not reply.endswith(b"\n"):
            raise self._failure(await self._epitaph())
        return wire.load(reply)

    async def _epitaph(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await self._process.wait()
                await self._noting
        code = self._process.returncode
        said = " ".join(b"".join(self._complaints).decode("utf-8", "replace").split())[-_SHOWN_COMPLAINTS:]
        how = f"died of signal {256 - code}" if code is not None and code > 128 else f"ended with exit code {code}"
        return f"{how}{': ' if said else ''}{said}"

    def _failure(self, what: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"environment {self._kind.name} {what}", where=f"environment:{self._kind.name}")

    async def _kill(self) -> None:
        """Ends the process with all that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # the watcher in there kills everything below it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._noting.cancel()
        await asyncio.gather(self._noting, return_exceptions=True)

    async def _note_complaints(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._complaints.append(data)


class ThreadInstance:
    """An environment in this process, for kinds that say that it does there. Each call has a thread of its own: in the
    pool that all share, calls that wait for a server would take every place, and others time out before they begin.
    """

    def __init__(self, kind: EnvironmentKind, environment: Environment, step_seconds: float) -> None:
        self._kind = kind
        self._environment = environment
        self._step_seconds = step_seconds
        self._broken = False
        self._closed = False

    @classmethod
    async def start(cls, kind: EnvironmentKind, settings: EnvironmentSettings) -> ThreadInstance:
        """Makes the environment. Raises `InfrastructureError` if it cannot be made."""
        where, seconds = f"environment:{kind.name}", kind.start_limit(settings)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                made = await call_in_thread(lambda: kind.make(**settings_values(settings)))
        except Exception as error:
            raise InfrastructureError(_complaint(kind, "start", error, limit, seconds), where=where) from error
        return cls(kind, made, kind.step_limit(settings))

    async def begin(self, episode: str) -> None:
        """Nothing to do: `reset` makes it new."""

    async def reset(self, columns: Mapping[str, Any]) -> str:
        """See `EnvironmentInstance`."""
        return await self._call(lambda: wire.observation_text(self._environment.reset(columns)), doing="reset")

    async def step(self, action: str) -> StepResult:
        """See `EnvironmentInstance`."""
        return await self._call(lambda: wire.result_of(wire.told(self._environment.step(action))), doing="step")

    async def healthy(self) -> bool:
        """Nothing has gone wrong in it."""
        return not self._broken and not self._closed

    async def close(self) -> None:
        """Closes the environment."""
        if self._closed:
            return
        self._closed = True
        async with asyncio.timeout(CLOSE_SECONDS):
            await call_in_thread(self._environment.close)

    async def _call(self, function: Callable[[], Value], *, doing: str) -> Value:
        where = f"environment:{self._kind.name}"
        healthy, limit = False, asyncio.timeout(self._step_seconds)
        try:
            async with limit:
                value = await call_in_thread(function)
            healthy = True
            return value
        except Exception as error:
            message = _complaint(self._kind, doing, error, limit, self._step_seconds)
            raise EnvironmentFailure(message, where=where) from error
        finally:
            self._broken = self._broken or not healthy


def _complaint(kind: EnvironmentKind, doing: str, error: Exception, limit: asyncio.Timeout, seconds: float) -> str:
    if limit.expired():
        return f"environment {kind.name} did not {doing} within {seconds:g} s"
    return f"environment {kind.name} failed to {doing}: {type(error).__name__}: {error}"


def _command() -> list[str]:
    boot = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from agentfly_lib.envs.host import main; main([])"
    return [sys.executable, "-c", boot, json.dumps(sys.path)]
