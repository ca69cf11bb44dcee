"""A service that runs already, somewhere: reached over HTTP, with a session of its own for each episode.

    spec = HttpSpec(url="http://127.0.0.1:8000", sessions="/sessions")
    async with engine.lease(spec, trajectory="0/0") as service:
        answer = await service.request("POST", f"/sessions/{service.session}/step", {"action": "look"})

Opening a session is `POST <sessions>` with `{"episode": <token>}`, answered by `{"id": <session>}`; closing it is
`DELETE <sessions>/<session>`. The service is not ours to start or to end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from agentfly_lib.errors import ConfigError, EnvironmentFailure, InfrastructureError
from agentfly_lib.resources.spec import PoolLimits

__all__ = ["HttpService", "HttpSpec"]

logger = logging.getLogger(__name__)

WHERE = "resource:http"
MAX_BYTES = 1 << 24
"""Longest answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSpec:
    """Where a service is, and how it is asked."""

    url: str
    health: str = "/health"
    """Path that answers 2xx when the service can be used."""
    sessions: str | None = None
    """Path under which sessions are opened and closed; None for a service without."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    seconds: float = 30.0
    """Limit of one request."""
    pool: PoolLimits = field(default_factory=PoolLimits)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"url={self.url!r} is not the address of a service, which begins with http:// or https://"
            )
        if not self.seconds > 0:
            raise ConfigError(f"seconds={self.seconds} must be more than 0")

    def check(self) -> None:
        """Raises `ConfigError` if the service does not answer; blocking."""
        url = self.url.rstrip("/") + self.health
        try:
            with httpx.stream("GET", url, headers=dict(self.headers), timeout=self.seconds, trust_env=False) as answer:
                pass  # what it says besides its status may be of any length
        except httpx.HTTPError as error:
            raise ConfigError(f"no service answers at {url} ({_said(error)}): start it, or correct the url") from error
        if not answer.is_success:
            raise ConfigError(f"the service at {url} says {answer.status_code}: it is not ready, or the url is wrong")

    async def create(self) -> HttpService:
        """A connection. Raises `InfrastructureError` if the service does not answer."""
        service = HttpService(self)
        try:
            if not await service.healthy():
                raise InfrastructureError(f"the service at {self.url} does not report that it is healthy", where=WHERE)
        except BaseException:
            await service.close()
            raise
        return service

    @asynccontextmanager
    async def open(self) -> AsyncIterator[HttpService]:
        """One for the length of the block, outside of any pool, with a session if there are any."""
        service = await self.create()
        try:
            await service.begin("alone")
            yield service
        finally:
            await service.close()


class HttpService:
    """A service, and the session of the current episode."""

    def __init__(self, spec: HttpSpec) -> None:
        self.session: str | None = None
        self._spec = spec
        self._client = httpx.AsyncClient(
            base_url=spec.url.rstrip("/"),
            headers={"Accept-Encoding": "identity"} | dict(spec.headers),
            timeout=spec.seconds,
            trust_env=False,
        )

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that the service answers; None for no content.

        Raises `InfrastructureError` if it does not answer or says that it is broken (5xx), `EnvironmentFailure` if it
        refuses (4xx) or answers nonsense.
        """
        where = f"{method} {self._spec.url}{path}"
        try:
            async with self._client.stream(method, path, json=body) as answer:
                text = bytearray()
                async for piece in answer.aiter_raw():  # what is compressed could unpack to any size
                    text += piece
                    if len(text) > MAX_BYTES:
                        raise EnvironmentFailure(f"{where} answers with more than {MAX_BYTES} bytes", where=WHERE)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise InfrastructureError(f"{where} is not answered: {_said(error)}", where=WHERE) from error
        if answer.is_server_error:
            raise InfrastructureError(f"{where} says {answer.status_code}: {_short(text)}", where=WHERE)
        if not answer.is_success:
            raise EnvironmentFailure(f"{where} says {answer.status_code}: {_short(text)}", where=WHERE)
        if not text:
            return None
        try:
            return httpx.Response(200, content=bytes(text)).json()
        except (ValueError, RecursionError) as error:
            raise EnvironmentFailure(
                f"{where} answers with something that is not JSON: {_short(text)}", where=WHERE
            ) from error

    async def begin(self, episode: str) -> None:
        """Closes the session of the episode before, and opens one for this."""
        await self._end_session()
        if self._spec.sessions is None:
            return
        answer = await self.request("POST", self._spec.sessions, {"episode": episode})
        if not isinstance(answer, dict) or not isinstance(answer.get("id"), str | int):
            raise EnvironmentFailure(f"{self._spec.url}{self._spec.sessions} gives no session id", where=WHERE)
        self.session = str(answer["id"])

    async def healthy(self) -> bool:
        try:
            async with self._client.stream("GET", self._spec.health) as answer:
                return answer.is_success
        except httpx.HTTPError:
            return False

    async def close(self) -> None:
        """Closes the session; the service goes on."""
        if self._client.is_closed:
            return
        try:
            await self._end_session()
        finally:
            await self._client.aclose()

    async def _end_session(self) -> None:
        session, self.session = self.session, None
        if session is None:
            return
        try:
            await self.request("DELETE", f"{self._spec.sessions}/{quote(session, safe='')}")
        except (EnvironmentFailure, InfrastructureError) as error:
            logger.info("a session of %s was not closed: %s", self._spec.url, error)  # it is the service's to forget


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _short(text: bytes | bytearray) -> str:
    return bytes(text[:300]).decode("utf-8", "replace")
