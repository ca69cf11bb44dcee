"""What a tool may need beyond itself: something that is opened for one trajectory and closed at its end.

A spec says what is needed, as a frozen, hashable value; equal specs of one trajectory share one resource. There are two
kinds. A `ResourceSpec` opens by itself, anew for each trajectory. A `PooledSpec` tells how to make one, and an
engine keeps them: in a pool with a cap, warm or made on demand, reset for each trajectory, replaced when dead.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class BoardSpec:
        size: int
        pool: PoolLimits = PoolLimits(warm=2, cap=8)

        def check(self) -> None: ...
        async def create(self) -> Board: ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from agentfly_lib.errors import ConfigError

__all__ = ["AnySpec", "PoolLimits", "PoolScope", "PooledSpec", "Resource", "ResourceSpec", "opened"]


class PoolScope(StrEnum):
    """Whom one resource serves."""

    TRAJECTORY = "trajectory"
    """One trajectory at a time, and it begins anew for each."""
    SHARED = "shared"
    """All trajectories at once (a search index, a judge): there is one, and it begins once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How many resources of one spec there are, and how long the steps of their lives may take."""

    warm: int = 0
    """So many are kept idle and ready, beside those in use, as far as the cap leaves room for them."""
    cap: int | None = None
    """Most that exist at the same time, idle ones included; who comes later waits for his turn. None: no limit."""
    scope: PoolScope = PoolScope.TRAJECTORY
    episodes: int | None = None
    """After so many episodes a resource is replaced, for what leaks memory. None: never."""
    idle_seconds: float = 30.0
    """So long a resource that nobody needs waits for the next trajectory before it is closed; `warm` ones stay."""
    start_seconds: float = 120.0
    """Limit for `create`."""
    step_seconds: float = 60.0
    """Limit for `begin`, for `healthy` and for `close`, each."""

    def __post_init__(self) -> None:
        if self.warm < 0:
            raise ConfigError(f"pool.warm={self.warm} must be at least 0")
        if self.cap is not None and self.cap < max(1, self.warm):
            raise ConfigError(f"pool.cap={self.cap} must be at least 1, and at least pool.warm={self.warm}")
        if self.episodes is not None and self.episodes < 1:
            raise ConfigError(f"pool.episodes={self.episodes} must be at least 1")
        if not self.idle_seconds >= 0:
            raise ConfigError(f"pool.idle_seconds={self.idle_seconds} must be at least 0")
        for name in ("start_seconds", "step_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"pool.{name}={getattr(self, name)} must be more than 0")


@runtime_checkable
class ResourceSpec(Protocol):
    """Says what is needed, and opens it by itself."""

    def check(self) -> None:
        """Raises `UserError` if this machine cannot provide it; asked once, before any rollout begins."""
        ...

    def open(self) -> AbstractAsyncContextManager[Any]:
        """The resource itself. Entering and leaving it are bounded in time, and happen in different tasks."""
        ...


class Resource(Protocol):
    """What a pool keeps. The engine bounds each call in time, and makes no two of them at once, except `healthy`."""

    async def begin(self, episode: str) -> None:
        """Makes it as good as new for this episode, whatever the one before has left. The token is unique.

        Raises if it cannot; it is then closed and another is made.
        """
        ...

    async def healthy(self) -> bool:
        """Whether it can be used (again). Also asked while it is in use and others wait; must not disturb."""
        ...

    async def close(self) -> None:
        """Frees what it holds, dead or alive. A second call does nothing."""
        ...


@runtime_checkable
class PooledSpec(Protocol):
    """Says what is needed, and makes one for the pool."""

    @property
    def pool(self) -> PoolLimits: ...

    def check(self) -> None:
        """Raises `UserError` if this machine cannot provide it; asked once, before any rollout begins."""
        ...

    async def create(self) -> Resource:
        """A new one, started. Raises `InfrastructureError` if what makes it is absent, full or broken.

        If it is cancelled or fails, nothing of it is left.
        """
        ...


AnySpec: TypeAlias = ResourceSpec | PooledSpec
"""What a tool may need: opened for each trajectory, or lent from a pool."""

Made_co = TypeVar("Made_co", bound=Resource, covariant=True)


class _Maker(Protocol[Made_co]):
    async def create(self) -> Made_co: ...


@asynccontextmanager
async def opened(spec: _Maker[Made_co]) -> AsyncIterator[Made_co]:
    """One for the length of the block, outside of any pool. Raises what making it raises."""
    resource = await spec.create()
    try:
        yield resource
    finally:
        await resource.close()
