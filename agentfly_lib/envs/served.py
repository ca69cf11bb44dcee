"""The near end of a server of environments (`envs.serve`): one session of it is one instance."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import aiohttp

from agentfly_lib.envs import wire
from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.instances import CLOSE_SECONDS
from agentfly_lib.errors import EnvironmentFailure, InfrastructureError

__all__ = ["ServedInstance"]

Value = TypeVar("Value")


class ServedInstance:
    """A session of a server of environments (`envs.serve`), in a container or on another machine."""

    def __init__(self, kind: EnvironmentKind, client: Any, step_seconds: float) -> None:
        self._kind = kind
        self._step_seconds = step_seconds
        self._client = client
        self._session = ""
        self._broken = False
        self._closed = False

    @classmethod
    async def start(cls, kind: EnvironmentKind, settings: EnvironmentSettings, url: str) -> ServedInstance:
        """Opens a session.

        Raises `InfrastructureError` if the server is not there, is full, serves something else, or cannot start one.
        """
        client = aiohttp.ClientSession(
            base_url=url,
            read_bufsize=1 << 20,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(),  # each request has the kind's own limit, which may be an hour
        )
        instance = cls(kind, client, kind.step_limit(settings))
        try:
            served = await instance._ask("GET", "/health", None, CLOSE_SECONDS, doing="start")
            wanted = {"kind": kind.name, "settings": settings.model_dump(mode="json")}
            if found := {key: served.get(key) for key in wanted if served.get(key) != wanted[key]}:
                raise EnvironmentFailure(f"{url} serves {found}, but the recipe needs {wanted}", where=instance._where)
            limit = kind.start_limit(settings) + CLOSE_SECONDS
            answer = await instance._ask("POST", "/sessions", {}, limit, doing="start")
            instance._session = str(answer["session"])
            return instance
        except BaseException as error:
            await asyncio.shield(client.close())
            if isinstance(error, EnvironmentFailure | KeyError):
                raise InfrastructureError(f"{error}", where=instance._where) from error
            raise

    async def begin(self, episode: str) -> None:
        """Nothing to do: `reset` makes it new."""

    async def reset(self, columns: Mapping[str, Any]) -> str:
        """See `EnvironmentInstance`."""
        answer = await self._call("reset", {"columns": dict(columns)})
        return self._checked(lambda: wire.observation_text(answer.get("observation")))

    async def step(self, action: str) -> StepResult:
        """See `EnvironmentInstance`."""
        answer = await self._call("step", {"action": action})
        return self._checked(lambda: wire.result_of(answer))

    async def healthy(self) -> bool:
        """Nothing has gone wrong in it."""
        return not self._broken and not self._closed

    async def close(self) -> None:
        """Ends the session."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._broken:
                with contextlib.suppress(EnvironmentFailure):
                    await self._ask("DELETE", f"/sessions/{self._session}", None, 2 * CLOSE_SECONDS, doing="close")
        finally:
            await asyncio.shield(self._client.close())

    @property
    def _where(self) -> str:
        return f"environment:{self._kind.name}"

    async def _call(self, what: str, message: Mapping[str, Any]) -> dict[str, Any]:
        seconds = self._step_seconds + CLOSE_SECONDS  # the server's own limit says better what happened
        return await self._ask("POST", f"/sessions/{self._session}/{what}", message, seconds, doing=what)

    async def _ask(self, method: str, path: str, message: Any, seconds: float, *, doing: str) -> dict[str, Any]:
        healthy, named = False, f"environment {self._kind.name} at {self._client._base_url}"
        try:
            # Redirected, a request could reach what listens on this machine's loopback interface.
            request = self._client.request(method, path, json=message, allow_redirects=False)
            async with asyncio.timeout(seconds), request as response:
                if 300 <= response.status < 400:
                    raise wire.Nonsense(f"it redirects to {response.headers.get('Location', 'nowhere')[:200]!r}")
                answer = wire.load(await _read(response))
            if response.status != 200:
                raise EnvironmentFailure(
                    f"{named} failed to {doing}: {answer.get('failed', answer)}", where=self._where
                )
            healthy = True
            return answer
        except TimeoutError as error:
            raise EnvironmentFailure(f"{named} did not {doing} within {seconds:g} s", where=self._where) from error
        except (aiohttp.ClientError, wire.Nonsense) as error:
            raise EnvironmentFailure(f"{named} failed to {doing}: {error}", where=self._where) from error
        finally:
            self._broken = self._broken or not healthy

    def _checked(self, read: Callable[[], Value]) -> Value:
        try:
            return read()
        except wire.Nonsense as error:
            self._broken = True
            raise EnvironmentFailure(
                f"environment {self._kind.name} gave an invalid answer: {error}", where=self._where
            ) from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > wire.MAX_LINE_BYTES:
            raise wire.Nonsense(f"an answer of more than {wire.MAX_LINE_BYTES} bytes")
    return bytes(data)
