"""The Docker engine, found once per process and asked in threads; what goes wrong with it is told in our own errors.

The engine is found as the `docker` command finds it (`DOCKER_HOST`, else the socket of this machine). It must be
reachable over a Unix socket or plain TCP, because the conversation with a sandbox needs the bare connection.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agentfly_lib.errors import AgentFlyError, InfrastructureError, SandboxUnavailableError
from agentfly_lib.resources.owner import LABEL, Owner

if TYPE_CHECKING:
    from docker import DockerClient

__all__ = ["DockerEngine", "Left", "docker_engine", "docker_missing"]

logger = logging.getLogger(__name__)

WHERE = "resource:docker"
_ANSWER_SECONDS = 60
_THREADS = 16
_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "pids", "CpuCfsQuota": "cpu"}

Value = TypeVar("Value")


class _SilentError(InfrastructureError):
    """The engine does not answer at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A container that bears our labels."""

    id: str
    name: str
    image: str
    status: str
    owner: Owner


class DockerEngine:
    """A connection, and the containers that this process has started and not yet removed."""

    def __init__(self, client: DockerClient, address: str) -> None:
        self.client = client
        self.address = address
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self._own: set[str] = set()
        self._unburied: set[str] = set()
        self._reaped: set[str] = set()
        self._reaping = threading.Lock()
        atexit.register(self._bury_all)

    async def call(
        self,
        function: Callable[..., Value],
        *arguments: Any,
        abandoned: Callable[[Value], object] | None = None,
    ) -> Value:
        """A blocking function, in a thread. Raises `InfrastructureError` for what the engine says or does not say.

        abandoned: undoes the result, in a thread, if it comes after the caller was cancelled.
        """

        def work() -> Value:
            with self.errors():
                return function(*arguments)

        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._undo(done, abandoned))
            raise

    def started(self, identity: str) -> None:
        """Notes a container, to be removed when the process ends if not before. Called before it is started."""
        self._own.add(identity)

    def remove(self, identity: str) -> None:
        """Removes a container, running or not; blocking. One that is gone already is fine.

        If the engine does not answer, it is removed as soon as the engine does for another one.
        """
        import docker.errors

        try:
            with self.errors():
                self.client.api.remove_container(identity, force=True, v=True)
        except docker.errors.NotFound:
            pass
        except InfrastructureError:
            self._unburied.add(identity)
            raise
        self._own.discard(identity)
        self._unburied.discard(identity)
        for other in list(self._unburied):
            self._unburied.discard(other)
            with contextlib.suppress(AgentFlyError):
                self.remove(other)

    def left(self) -> list[Left]:
        """All containers with our labels, whoever started them; blocking."""
        with self.errors():
            found = self.client.api.containers(all=True, filters={"label": f"{LABEL}.pid"})
        return [
            Left(
                id=each["Id"],
                name=each["Names"][0].lstrip("/") if each["Names"] else each["Id"][:12],
                image=each["Image"],
                status=each["Status"],
                owner=owner,
            )
            for each in found
            if (owner := Owner.of(each["Labels"])) is not None
        ]

    def reap_once(self, run: str) -> None:
        """Removes what earlier processes of `run` have left, unless that was done for it already; blocking."""
        with self._reaping:
            if run in self._reaped:
                return
            for container in self.left():
                if container.owner.run == run and container.owner.gone:
                    logger.info("removing %s, which a process of this run has left", container.name)
                    try:
                        self.remove(container.id)
                    except _SilentError:
                        raise
                    except InfrastructureError as error:  # tried again with the next that is removed
                        logger.warning("%s stays for now: %s", container.name, error)
            self._reaped.add(run)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Tells the engine's failures as `InfrastructureError`; `docker.errors.NotFound` stays what it is."""
        import docker.errors
        import requests.exceptions

        try:
            yield
        except docker.errors.NotFound:
            raise
        except docker.errors.APIError as error:
            said = str(error.explanation or error).strip()
            if "no space left on device" in said.lower():
                said = f"it is out of disk space ({said}); free some, `docker system prune` is a beginning"
            raise InfrastructureError(f"the Docker engine at {self.address}: {said}", where=WHERE) from error
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise _SilentError(f"the Docker engine at {self.address} does not answer: {error}", where=WHERE) from error

    def check_limits(self) -> None:
        """Raises `SandboxUnavailableError` if this engine would ignore a limit; blocking."""
        with self.errors():
            info = self.client.info()
        ignored = [name for key, name in _LIMITS.items() if not info.get(key)]
        if ignored:
            raise SandboxUnavailableError(
                f"the Docker engine at {self.address} cannot limit {', '.join(ignored)} (`docker info` says so; a "
                "rootless engine needs cgroup v2 with delegated controllers), and untrusted code needs limits"
            )

    def _undo(self, done: asyncio.Future[Value], abandoned: Callable[[Value], object] | None) -> None:
        if done.cancelled() or done.exception() is not None or abandoned is None:
            return
        self._threads.submit(_quietly, abandoned, done.result())

    def _bury_all(self) -> None:
        for identity in list(self._own):
            try:
                self.remove(identity)
            except _SilentError:  # it would be waited for again with each; the run's next start removes them
                return
            except AgentFlyError as error:
                logger.warning("a container was left behind: %s", error)


def docker_engine() -> DockerEngine:
    """The engine of this process's environment; blocking. Raises `SandboxUnavailableError` if there is none."""
    return _connect(os.environ.get("DOCKER_HOST", ""))


def docker_missing() -> str | None:
    """Why there is no Docker engine here; None if there is one."""
    try:
        docker_engine()
    except SandboxUnavailableError as error:
        return str(error)
    return None


@functools.cache
def _connect(host: str) -> DockerEngine:
    import docker
    import docker.errors
    import requests.exceptions

    address = host or "unix:///var/run/docker.sock"
    if host.startswith(("ssh://", "npipe://")) or os.environ.get("DOCKER_TLS_VERIFY"):
        raise SandboxUnavailableError(
            f"DOCKER_HOST={address}: sandboxes talk to their engine over a Unix socket or plain TCP; forward the "
            "remote socket (`ssh -L /tmp/docker.sock:/var/run/docker.sock HOST`), or let Ray place them on that machine"
        )
    try:
        client = docker.from_env(timeout=_ANSWER_SECONDS, max_pool_size=_THREADS)
        client.ping()
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise SandboxUnavailableError(
            f"no Docker engine answers at {address} ({error}): start it, or set DOCKER_HOST to its address"
        ) from error
    return DockerEngine(client, address)


class Hijacked:
    """The bare connection to a container's or a command's standard streams, after the engine has let go of HTTP."""

    def __init__(self, answer: Any) -> None:
        """answer: what `attach_socket` or `exec_start(socket=True)` of the SDK gave."""
        response = answer._response
        answer._sock.setblocking(False)
        self._buffered: bytes = response.raw._fp.fp.peek()
        self._socket = socket.socket(fileno=os.dup(answer.fileno()))
        response.close()

    async def open(self) -> tuple[asyncio.StreamWriter, AsyncIterator[tuple[int, bytes]]]:
        """To write to its standard input, and what comes back: (1 for output or 2 for errors, bytes)."""
        connect = asyncio.open_unix_connection if self._socket.family == socket.AF_UNIX else asyncio.open_connection
        reader, writer = await connect(sock=self._socket)
        return writer, self._frames(reader)

    def close(self) -> None:
        self._socket.close()

    async def _frames(self, reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
        """Frames of the engine: one byte for the stream, three zeros, four of length."""
        data = bytearray(self._buffered)
        while True:
            while len(data) >= 8 and len(data) >= 8 + (length := int.from_bytes(data[4:8], "big")):
                yield data[0], bytes(data[8 : 8 + length])
                del data[: 8 + length]
            more = await reader.read(1 << 16)
            if not more:
                return
            data += more


def _quietly(function: Callable[[Value], object], value: Value) -> None:
    try:
        function(value)
    except AgentFlyError as error:
        logger.warning("something was left behind: %s", error)
