"""The same resources on the nodes of a Ray cluster: Ray finds a place for each, and it is used from here.

    spec = RaySpec(spec=ContainerSpec(image="agentfly-sandbox"), num_cpus=1, custom={"docker": 1})

Each resource lives in an actor of its own, which asks for the processors (and custom resources, such as one that marks
nodes with a Docker engine) that it takes. A caller's methods run there; files are copied from and to this machine. When
this process ends, Ray ends its actors, and what they held ends with them. A node that is lost is a failure of
infrastructure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentfly_lib import errors
from agentfly_lib.errors import AgentFlyError, ConfigError, InfrastructureError, RolloutError
from agentfly_lib.resources.copying import COPY_BYTES, read_tree, write_tree
from agentfly_lib.resources.owner import owned_by, this_owner
from agentfly_lib.resources.sandbox import WORKSPACE
from agentfly_lib.resources.spec import PooledSpec, PoolLimits, Resource, opened

__all__ = ["RaySpec", "RemoteResource"]

WHERE = "resource:ray"
_SIMPLE = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySpec:
    """A spec, and what a node must have to spare for one resource of it."""

    spec: PooledSpec
    num_cpus: float = 1.0
    custom: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Custom resources of Ray."""

    def __post_init__(self) -> None:
        if self.num_cpus < 0:
            raise ConfigError(f"num_cpus={self.num_cpus} must be at least 0")

    @property
    def pool(self) -> PoolLimits:
        return self.spec.pool

    def check(self) -> None:
        """Raises `ConfigError` if no Ray has been started here, or none of its nodes could ever hold one."""
        import ray

        if not ray.is_initialized():
            raise ConfigError("resources with placement by Ray need a Ray cluster, which this process has not joined")
        wanted = {"CPU": self.num_cpus, **self.custom}
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if not any(all(node["Resources"].get(name, 0) >= count for name, count in wanted.items()) for node in nodes):
            raise ConfigError(
                f"no node of the Ray cluster has {', '.join(f'{count:g} {name}' for name, count in wanted.items())}: "
                "ask for less, or start nodes with these resources (`ray start --resources`)"
            )

    async def create(self) -> RemoteResource:
        """One on some node. Raises what making it there raises; waits for as long as no node has room."""
        import ray

        place: Any = ray.remote(_Host)  # decorated by hand, because Ray is imported only here
        options = {"num_cpus": self.num_cpus, "resources": dict(self.custom), "max_concurrency": 64, "max_restarts": 0}
        actor = place.options(**options).remote()
        try:
            attributes, methods = await _answer(actor.start.remote(self.spec, this_owner().run))
        except BaseException:
            ray.kill(actor)
            raise
        return RemoteResource(actor, attributes, methods)

    def open(self) -> AbstractAsyncContextManager[RemoteResource]:
        """One for the length of the block, outside of any pool."""
        return opened(self)


class RemoteResource:
    """A resource elsewhere: its simple attributes as they were when it was made, and its methods."""

    def __init__(self, actor: Any, attributes: Mapping[str, Any], methods: frozenset[str]) -> None:
        self._actor = actor
        self._attributes = attributes
        self._methods = methods
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._methods:
            return self._method(name)
        if name in self._attributes:
            return self._attributes[name]
        raise AttributeError(f"the resource on a node of the cluster has no {name}")

    async def begin(self, episode: str) -> None:
        await self._call("begin", (episode,), {})

    async def healthy(self) -> bool:
        try:
            return not self._closed and await self._call("healthy", (), {})
        except InfrastructureError:
            return False

    async def close(self) -> None:
        """Frees it there, and the place too. A second call does nothing."""
        import ray

        if self._closed:
            return
        self._closed = True
        try:
            await self._call("close", (), {})
        finally:
            ray.kill(self._actor)

    async def copy_in(self, source: Path, target: str = WORKSPACE) -> None:
        """See `Sandbox.copy_in`; the files are this machine's."""
        await write_tree(self, source, target)

    async def copy_out(self, source: str, target: Path, *, max_bytes: int = COPY_BYTES) -> None:
        """See `Sandbox.copy_out`; the files are this machine's."""
        await read_tree(self, source, target, max_bytes)

    def _method(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def method(*arguments: Any, **options: Any) -> Any:
            return await self._call(name, arguments, options)

        return method

    async def _call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return await _answer(self._actor.call.remote(name, arguments, options))


class _Host:
    """The actor's side."""

    def __init__(self) -> None:
        self._resource: Resource | None = None

    async def start(self, spec: PooledSpec, run: str) -> _Said:
        async def make() -> tuple[dict[str, Any], frozenset[str]]:
            owned_by(run)
            resource = self._resource = await spec.create()
            names = [name for name in dir(resource) if not name.startswith("_")]
            public = {name: getattr(resource, name, None) for name in names}
            attributes = {name: value for name, value in public.items() if isinstance(value, _SIMPLE)}
            return attributes, frozenset(name for name, value in public.items() if callable(value))

        return await _told(make())

    async def call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> _Said:
        return await _told(getattr(self._resource, name)(*arguments, **options))


@dataclass(frozen=True, slots=True)
class _Said:
    """A result, or one of our errors: they do not survive the journey as objects."""

    value: Any = None
    error: str | None = None
    message: str = ""
    where: str = ""


async def _told(work: Awaitable[Any]) -> _Said:
    try:
        return _Said(await work)
    except AgentFlyError as error:
        kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in errors.__all__)
        return _Said(error=kind, message=str(error), where=getattr(error, "where", ""))


async def _answer(reference: Any) -> Any:
    """What a call brought; a call is cancelled with its caller."""
    import ray
    import ray.exceptions

    try:
        said: _Said = await reference
    except asyncio.CancelledError:
        ray.cancel(reference)
        raise
    except ray.exceptions.RayTaskError as error:
        raise InfrastructureError(f"a resource on the cluster failed: {error.cause}", where=WHERE) from error
    except ray.exceptions.RayError as error:
        raise InfrastructureError(f"the node or the process of a resource is lost: {error}", where=WHERE) from error
    if said.error is None:
        return said.value
    kind = getattr(errors, said.error)
    raise kind(said.message, where=said.where) if issubclass(kind, RolloutError) else kind(said.message)
