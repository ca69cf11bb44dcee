"""Search engines behind an HTTP endpoint: SearXNG's and Serper's kinds of answer.

Every request is bounded in time, spaced by a rate limit that all trajectories share, tried again with growing pauses
when the endpoint is busy or away, and its answer is kept for equal queries.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from agentfly_lib.configs.base import Config
from agentfly_lib.errors import ConfigError, InfrastructureError
from agentfly_lib.tools.search import SearchHit

if TYPE_CHECKING:
    from httpx import AsyncClient

__all__ = ["EndpointProvider", "RateLimit", "SearxngSettings", "SerperSettings"]

_MAX_ANSWER_BYTES = 1 << 22
_PLAIN = {"Accept-Encoding": "identity"}
"""What is compressed could unpack to any size."""
_MAX_PAUSE = 30.0

Url = Annotated[str, Field(pattern=r"^https?://[^\s]+$")]


class EndpointSettings(Config, ABC):
    """How an endpoint is asked."""

    timeout_seconds: PositiveFloat = 10.0
    """Limit of one request."""
    retries: NonNegativeInt = 2
    """Tries after the first, where the endpoint is busy or away."""
    backoff_seconds: NonNegativeFloat = 0.5
    """Pause before the first of them; doubled each time. The endpoint's own `Retry-After` is kept to, up to 30 s."""
    requests_per_second: PositiveFloat = 5.0
    """Over all trajectories of this process."""
    cached_queries: NonNegativeInt = 1000

    @abstractmethod
    def request(self, query: str, count: int) -> dict[str, Any]:
        """Arguments of httpx's `request`."""

    @abstractmethod
    def hits(self, answer: Any) -> list[SearchHit]:
        """Reads an answer; raises `KeyError`, `TypeError` or `AttributeError` if it is none."""

    def check(self) -> None:
        """Raises `ConfigError` if something is missing here."""


class SearxngSettings(EndpointSettings):
    """A SearXNG instance, or what answers as one. Its JSON format must be switched on."""

    type: Literal["searxng"] = "searxng"
    url: Url
    """Of its search page, such as `http://127.0.0.1:8888/search`."""

    def request(self, query: str, count: int) -> dict[str, Any]:
        return {"method": "GET", "url": self.url, "params": {"q": query, "format": "json"}}

    def hits(self, answer: Any) -> list[SearchHit]:
        return [
            SearchHit(title=str(row["title"]), url=str(row["url"]), text=str(row.get("content") or ""))
            for row in answer["results"]
        ]


class SerperSettings(EndpointSettings):
    """Serper, or what answers as it does."""

    type: Literal["serper"] = "serper"
    url: Url = "https://google.serper.dev/search"
    api_key_variable: str = "SERPER_API_KEY"
    """Environment variable that holds the key, so that no recipe does."""

    def request(self, query: str, count: int) -> dict[str, Any]:
        key = os.environ.get(self.api_key_variable, "")
        return {"method": "POST", "url": self.url, "headers": {"X-API-KEY": key}, "json": {"q": query, "num": count}}

    def hits(self, answer: Any) -> list[SearchHit]:
        return [
            SearchHit(title=str(row["title"]), url=str(row["link"]), text=str(row.get("snippet") or ""))
            for row in answer["organic"]
        ]

    def check(self) -> None:
        if not os.environ.get(self.api_key_variable):
            raise ConfigError(f"web_search: set the environment variable {self.api_key_variable} to your key")


class RateLimit:
    """Gives every request its moment, evenly spaced, over all event loops and threads."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def delay(self, now: float) -> float:
        """Seconds that a request of this moment has to wait; each call takes one moment."""
        with self._lock:
            start = max(now, self._free_at)
            self._free_at = start + self._interval
        return start - now


class EndpointProvider:
    """Asks an endpoint, over connections that each event loop keeps until it ends."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._limit = RateLimit(settings.requests_per_second)
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncClient, AsyncGenerator[AsyncClient]]] = {}
        self._known: OrderedDict[tuple[str, int], list[SearchHit]] = OrderedDict()

    async def search(self, query: str, count: int) -> list[SearchHit]:
        """See `SearchProvider`."""
        key = (query, count)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        found = (await self._ask(query, count))[:count]
        if self._settings.cached_queries:
            self._known[key] = found
            while len(self._known) > self._settings.cached_queries:
                self._known.popitem(last=False)
        return found

    async def _ask(self, query: str, count: int) -> list[SearchHit]:
        problem = ""
        for attempt in range(self._settings.retries + 1):
            await asyncio.sleep(self._limit.delay(time.monotonic()))
            try:
                return await self._ask_once(self._settings.request(query, count))
            except _Busy as error:
                problem = str(error)
                if attempt < self._settings.retries:
                    await asyncio.sleep(min(_MAX_PAUSE, max(error.pause, self._settings.backoff_seconds * 2**attempt)))
        raise InfrastructureError(f"the search at {self._url} gives no answer: {problem}", where="tool:web_search")

    async def _ask_once(self, request: Mapping[str, Any]) -> list[SearchHit]:
        import httpx

        try:
            async with (
                asyncio.timeout(self._settings.timeout_seconds),
                (await self._client()).stream(**request) as response,
            ):
                data = await self._read(response)
        except (httpx.TransportError, TimeoutError) as error:
            raise _Busy(f"{type(error).__name__}: {error}".strip(": ")) from error
        if response.status_code == 429 or response.status_code >= 500:
            pause = response.headers.get("retry-after", "")
            raise _Busy(f"status {response.status_code}", pause=float(pause) if pause.isdecimal() else 0.0)
        if response.status_code != 200:
            raise InfrastructureError(
                f"the search at {self._url} refuses requests with status {response.status_code}",
                where="tool:web_search",
            )
        try:
            return self._settings.hits(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InfrastructureError(
                f"the search at {self._url} gave an answer that {type(self._settings).__name__} cannot read: "
                f"{type(error).__name__}: {error}",
                where="tool:web_search",
            ) from error

    async def _client(self) -> AsyncClient:
        """This event loop's, held by an asynchronous generator: the loop closes those when it ends."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            holder = self._hold(loop)
            self._clients[loop] = await anext(holder), holder
        return self._clients[loop][0]

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[AsyncClient]:
        import httpx

        client = httpx.AsyncClient(timeout=self._settings.timeout_seconds, headers=_PLAIN, trust_env=False)
        try:
            yield client
        finally:
            del self._clients[loop]
            await client.aclose()

    async def _read(self, response: Any) -> bytes:
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > _MAX_ANSWER_BYTES:
                raise InfrastructureError(
                    f"the search at {self._url} answers with more than {_MAX_ANSWER_BYTES} bytes",
                    where="tool:web_search",
                )
        return bytes(data)

    @property
    def _url(self) -> str:
        return str(self._settings.request("", 1)["url"])


class _Busy(Exception):
    """May go better later."""

    def __init__(self, message: str, *, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause
