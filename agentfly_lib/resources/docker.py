"""Sandboxes in containers of the Docker engine, and services in containers beside which commands can be run.

    spec = ContainerSpec(image="python:3.11-slim", memory_mib=512)
    async with spec.open() as container:
        done = await container.run(["python3", "-c", "print(6 * 7)"], seconds=5)

A container has no network unless one is named, a read-only root, no capabilities and no way to get any, a user without
privileges, a private `/workspace`, `/tmp` and `/dev/shm` of limited size in memory, and limits of memory, processor and
processes that the kernel keeps. It bears its owner's labels before it starts. Its first process is our keeper, which
nothing inside can end or speak for; it ends every command whole at its limit, and ends itself, and with it the
container, when the connection to it does: a killed run leaves no running container of this kind. What is left is
removed by the next start of the run.

An image needs a Python of 3.9 or later for the keeper; any image can be a service (`command`) that runs no commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentfly_lib.errors import ConfigError, InfrastructureError, SandboxError
from agentfly_lib.resources import keeper
from agentfly_lib.resources.conversation import Conversation
from agentfly_lib.resources.docker_engine import WHERE, DockerEngine, Hijacked, docker_engine
from agentfly_lib.resources.images import ImageProgress, ensure_image, log_progress
from agentfly_lib.resources.owner import this_owner
from agentfly_lib.resources.sandbox import WORKSPACE, Sandbox
from agentfly_lib.resources.spec import PoolLimits, opened

__all__ = ["Container", "ContainerSpec", "Mount"]

START_SECONDS = 60.0
"""Limit for the keeper to come up in a container that has started."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the engine's machine that is visible inside."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """A container: what runs in it, what it sees, and what it may use up."""

    image: str
    build: str | None = None
    """A folder with a Dockerfile, from which `image` is built when it is missing or the folder has changed."""
    pull: bool = True
    """An image that is not there is asked for where its name says; ours never are, as nobody publishes them."""
    command: tuple[str, ...] | None = None
    """A service, which runs for as long as the container. None: nothing but the commands that `run` is given."""
    memory_mib: int = 512
    """Of all processes and files in memory together, without swap; one that wants more is killed."""
    cpus: float = 1.0
    processes: int = 64
    """Processes and threads of the container together; one is the container's own, and two are a service's."""
    disk_mib: int = 64
    """Size of `/workspace`, of `/tmp` and of `/dev/shm`, each. They are in memory, and count as such."""
    file_mib: int = 32
    """Longest file that a command may write."""
    open_files: int = 1024
    """Files that one process may have open."""
    life_seconds: int = 86_400
    """After this it ends by itself, whatever it does; not a service, which ends with its lease."""
    network: str = "none"
    """Name of the engine's network to join. Anything but `none` can reach whatever that network reaches."""
    ports: tuple[int, ...] = ()
    """TCP ports of a service, to be reached at `address(port)`, on the loopback interface; they need a network."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables beside the image's. Nothing of our own environment goes in."""
    mounts: tuple[Mount, ...] = ()
    user: int = 65534
    """Id of user and group inside; 0 only for images whose files belong to root and must be changed, since the root of
    a container is the machine's, although without capabilities."""
    folder: str = WORKSPACE
    """Where commands start."""
    read_only: bool = True
    """The root file system. One that can be written has no limit of size but that of a file, and is thrown away with
    the container."""
    python: str | None = "python3"
    """The interpreter inside; None if the image has none, and then no commands can be run."""
    runtime: str | None = None
    """Another runtime that the engine knows, such as `runsc`."""
    pool: PoolLimits = field(default_factory=lambda: PoolLimits(idle_seconds=0))

    def __post_init__(self) -> None:
        for name in ("memory_mib", "cpus", "processes", "disk_mib", "file_mib", "life_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be more than 0")
        if self.memory_mib < 6:
            raise ConfigError(f"memory_mib={self.memory_mib}: a container needs at least 6")
        if self.open_files < 128:
            raise ConfigError(f"open_files={self.open_files} must be at least 128")
        if self.ports and self.network == "none":
            raise ConfigError(f"ports={self.ports} cannot be reached with network='none': name a network")
        if self.python is None and self.command is None:
            raise ConfigError(f"image {self.image}: without a Python and without a command there is nothing to run")

    def check(self) -> None:
        """Has the image at hand, pulled or built if need be. Raises `SandboxUnavailableError` if that cannot be."""
        engine = docker_engine()
        engine.check_limits()
        self.prepare()

    def prepare(self, progress: Callable[[ImageProgress], None] | None = None) -> None:
        """Has the image at hand; blocking. progress: told how a pull or a build goes, the log by default."""
        tell = progress or log_progress()
        ensure_image(docker_engine(), self.image, build=self.build, pull=self.pull, progress=tell)

    async def create(self) -> Container:
        """A container that runs. Raises `InfrastructureError` if the engine is absent, full or broken."""
        container = Container(self)
        await container.start()
        return container

    def open(self) -> AbstractAsyncContextManager[Container]:
        """One for the length of the block, outside of any pool."""
        return opened(self)


class Container(Sandbox):
    """A container. One that has died is replaced, empty, by the next command."""

    def __init__(self, spec: ContainerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.python = spec.python or ""

    async def address(self, port: int) -> tuple[str, int]:
        """Where a port of the spec can be reached: host and port. Raises `SandboxError` if it is not published."""
        box = await self._alive()
        assert isinstance(box, _Box)
        state = await box.inspect()
        bound = state["NetworkSettings"]["Ports"].get(f"{port}/tcp")
        if not bound:
            raise SandboxError(f"port {port} of image {self.spec.image} is not published; name it in `ports`")
        return bound[0]["HostIp"], int(bound[0]["HostPort"])

    @property
    def id(self) -> str | None:
        """The engine's name for it, while it runs."""
        return self._box.id if isinstance(self._box, _Box) else None

    async def healthy(self) -> bool:
        """Not closed; and if it is a service, it runs."""
        box = self._box
        if self.spec.command is None or self._closed or not isinstance(box, _Box):
            return not self._closed
        return (await box.inspect())["State"]["Running"]

    async def _launch(self) -> _Box:
        return await _Box.start(self.spec)


class _Box:
    """One container, and the conversation with the keeper in it."""

    def __init__(self, engine: DockerEngine, spec: ContainerSpec, identity: str) -> None:
        self.id = identity
        self._engine = engine
        self._spec = spec
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._complaints: deque[str] = deque(maxlen=20)
        self._ended = False
        self._removed = False
        self.conversation = Conversation(self._write)

    @classmethod
    async def start(cls, spec: ContainerSpec) -> _Box:
        engine = await asyncio.to_thread(docker_engine)
        owner = this_owner()
        await engine.call(engine.reap_once, owner.run)
        settings = _settings(engine, spec, owner.labels())
        identity, stream = await engine.call(
            _start, engine, spec, settings, abandoned=lambda started: _throw_away(engine, *started)
        )
        box = cls(engine, spec, identity)
        try:
            await box._listen_to(stream)
        except BaseException as error:
            await asyncio.shield(box.close())
            if isinstance(error, TimeoutError):
                raise InfrastructureError(
                    f"the keeper did not come up in a container of {spec.image} within {START_SECONDS:g} s", where=WHERE
                ) from error
            raise
        return box

    @property
    def dead(self) -> bool:
        return self._ended

    async def inspect(self) -> dict[str, Any]:
        return await self._engine.call(self._engine.client.api.inspect_container, self.id)

    async def close(self) -> None:
        if self._removed:
            return
        self._removed = self._ended = True
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        self.conversation.fail(SandboxError("the sandbox was closed"))
        await self._engine.call(self._engine.remove, self.id)

    def _write(self, data: bytes) -> None:
        if self._writer is None:
            raise ConnectionError
        self._writer.write(data)

    async def _listen_to(self, stream: Hijacked | None) -> None:
        if stream is None:  # a service in an image without Python
            self.conversation.fail(SandboxError(f"no commands can be run in {self._spec.image}: it has no Python"))
            return
        self._writer, frames = await stream.open()
        self._listener = asyncio.create_task(self._listen(frames))
        async with asyncio.timeout(START_SECONDS):
            await self.conversation.ready

    async def _listen(self, frames: AsyncIterator[tuple[int, bytes]]) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            async for stream, data in frames:
                if stream == 1:
                    self.conversation.feed(data)
                else:
                    self._complaints.append(data.decode("utf-8", "replace"))
        self._ended = True
        self.conversation.fail(await self._reason())

    async def _reason(self) -> Exception:
        """Why the conversation has ended: the container's own doing, or the engine's."""
        import docker.errors

        try:
            state = (await self.inspect())["State"]
        except docker.errors.NotFound:
            return InfrastructureError("the container was removed from outside", where=WHERE)
        except InfrastructureError as error:
            return error
        if state.get("Dead") or state.get("Status") == "removing":
            return InfrastructureError("the container was removed from outside", where=WHERE)
        said = " ".join(" ".join(self._complaints).split())[-500:]
        if not self.conversation.ready.done():
            why = said or state.get("Error") or f"exit code {state.get('ExitCode')}"
            return InfrastructureError(f"a container of {self._spec.image} does not start: {why}", where=WHERE)
        why = f"it was out of memory ({self._spec.memory_mib} MiB)" if state.get("OOMKilled") else said
        return SandboxError(f"the sandbox died, with all that was in it. {why}".strip())


def _start(engine: DockerEngine, spec: ContainerSpec, settings: dict[str, Any]) -> tuple[str, Hijacked | None]:
    """Creates a container, takes hold of its keeper's streams, and starts it; blocking. Leaves nothing if it fails."""
    import docker.errors

    api = engine.client.api
    stream: Hijacked | None = None
    try:
        created = engine.client.containers.create(spec.image, **settings)
    except docker.errors.NotFound as error:
        raise InfrastructureError(
            f"image {spec.image} or network {spec.network} does not exist (any more): {error.explanation}", where=WHERE
        ) from error
    identity = str(created.id)
    engine.started(identity)
    try:
        if spec.command is None:
            streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            stream = Hijacked(api.attach_socket(identity, params=streams))
        api.start(identity)
        if spec.command is not None and spec.python is not None:
            command = api.exec_create(identity, _keeper_command(spec), stdin=True, workdir="/")
            stream = Hijacked(api.exec_start(command["Id"], socket=True))
    except BaseException:
        if stream is not None:
            stream.close()
        with contextlib.suppress(InfrastructureError):
            engine.remove(identity)
        raise
    return identity, stream


def _throw_away(engine: DockerEngine, identity: str, stream: Hijacked | None) -> None:
    if stream is not None:
        stream.close()
    engine.remove(identity)


def _settings(engine: DockerEngine, spec: ContainerSpec, labels: dict[str, str]) -> dict[str, Any]:
    """What the engine is told."""
    from docker.types import LogConfig, Ulimit
    from docker.types import Mount as EngineMount

    inodes = max(1024, 256 * spec.disk_mib)
    size = f"size={spec.disk_mib * _MIB},nr_inodes={inodes}"
    # Not by its mode, because that of the image's own folder of this name would win.
    private = f"rw,exec,nosuid,nodev,uid={spec.user},gid={spec.user},{size}"
    service = spec.command is not None
    # The keeper's output is a conversation, and nothing for a log on the engine's disk.
    log = LogConfig(type="json-file", config={"max-size": "1m"}) if service else LogConfig(type="none")
    return {
        "name": f"agentfly-{secrets.token_hex(8)}",
        "labels": labels,
        "entrypoint": [""],
        "command": list(spec.command) if spec.command is not None else _keeper_command(spec),
        "stdin_open": not service,
        # A service need not bury orphans, so something has to. A keeper does, and no other process may hold its pipes.
        "init": service,
        "read_only": spec.read_only,
        "tmpfs": {WORKSPACE: private, "/tmp": private},  # noqa: S108  the container's own
        "shm_size": spec.disk_mib * _MIB,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "user": f"{spec.user}:{spec.user}",
        "hostname": "sandbox",
        "working_dir": spec.folder if service else "/",
        "network_mode": spec.network,
        "ports": {f"{port}/tcp": ("127.0.0.1", None) for port in spec.ports},
        "mem_limit": spec.memory_mib * _MIB,
        "memswap_limit": spec.memory_mib * _MIB,
        "nano_cpus": round(spec.cpus * 1e9),
        "pids_limit": spec.processes,
        "ulimits": [Ulimit(name="core", soft=0, hard=0)],
        "environment": {"HOME": WORKSPACE, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8", **spec.environment},
        "mounts": [
            EngineMount(target=mount.target, source=mount.source, type="bind", read_only=mount.read_only)
            for mount in spec.mounts
        ],
        "log_config": log,
        "ipc_mode": "private",
        **({"runtime": spec.runtime} if spec.runtime else {}),
    }


def _keeper_command(spec: ContainerSpec) -> list[str]:
    settings = {
        "uid": None,
        "cpu_seconds": None,
        "memory_bytes": None,
        "processes": None,
        "file_bytes": spec.file_mib * _MIB,
        "open_files": spec.open_files,
        "environment": None,
        "folder": spec.folder,
        "life_seconds": None if spec.command is not None else spec.life_seconds,
        "dies_with_parent": False,
    }
    assert spec.python is not None
    return [spec.python, "-I", "-S", "-c", _program(), json.dumps(settings)]


@functools.cache
def _program() -> str:
    return Path(keeper.__file__).read_text(encoding="utf-8")
