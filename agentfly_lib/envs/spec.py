"""An environment as a resource: which one, with which settings, where it runs, and how many of it there may be."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from agentfly_lib.configs.agent import EnvironmentChoice, EnvironmentConfig
from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings
from agentfly_lib.envs.instances import EnvironmentInstance, ProcessInstance, ThreadInstance
from agentfly_lib.envs.registry import get_environment, read_settings, reference_of
from agentfly_lib.resources.spec import PoolLimits, opened

__all__ = ["EnvironmentSpec", "configured_environment", "environment_spec"]

Place = Literal["process", "thread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """Equal specs are served by the same pool of instances; one instance serves one trajectory at a time."""

    kind: EnvironmentKind
    settings: EnvironmentSettings
    place: Place
    url: str | None = None
    """A server that runs it (`python -m agentfly_lib.envs.host --http`); `place` does not count then."""
    pool: PoolLimits = field(default_factory=PoolLimits)

    def check(self) -> None:
        """Raises `UserError` if the environment cannot run here: a package or its data are missing."""
        if self.url is not None:
            return  # what it needs, it needs there
        if self.kind.check is not None:
            self.kind.check(self.settings)
        if self.place == "process":
            reference_of(self.kind)

    async def create(self) -> EnvironmentInstance:
        """A new one, made and ready for its first episode. Raises `InfrastructureError` if it cannot start."""
        if self.url is not None:
            from agentfly_lib.envs.served import ServedInstance

            return await ServedInstance.start(self.kind, self.settings, self.url)
        if self.place == "thread":
            return await ThreadInstance.start(self.kind, self.settings)
        return await ProcessInstance.start(self.kind, self.settings)

    def open(self) -> AbstractAsyncContextManager[EnvironmentInstance]:
        """One for the length of the block, outside of any pool."""
        return opened(self)


def environment_spec(
    kind: EnvironmentKind | str,
    settings: Mapping[str, Any] | None = None,
    *,
    place: Place | None = None,
    url: str | None = None,
    warm: int = 0,
    cap: int | None = None,
    where: str = "settings",
) -> EnvironmentSpec:
    """The spec of an environment, by its kind or its name.

    place: where it runs, in place of what the kind says. url: a server that runs it instead.
    warm, cap: see `PoolLimits`.
    where: what errors call the table of the settings.

    Raises `ConfigError` for an unknown name or for settings that do not fit.
    """
    found = get_environment(kind) if isinstance(kind, str) else kind
    read = read_settings(found, settings or {}, where=where)
    return EnvironmentSpec(
        kind=found,
        settings=read,
        place=place or found.place,
        url=url,
        pool=PoolLimits(
            warm=warm,
            cap=cap,
            start_seconds=found.start_limit(read) + SLACK_SECONDS,
            step_seconds=found.step_limit(read) + SLACK_SECONDS,
        ),
    )


def configured_environment(config: EnvironmentChoice, *, where: str) -> EnvironmentSpec:
    """The spec of what a recipe says in the table `where`. Raises as `environment_spec` does."""
    limits = {"warm": config.warm, "cap": config.cap} if isinstance(config, EnvironmentConfig) else {}
    return environment_spec(
        config.name, config.settings, place=config.place, url=config.url, where=f"{where}.settings", **limits
    )


SLACK_SECONDS = 30.0
"""A pool waits so much longer than the instance's own limits, which say better what happened."""
