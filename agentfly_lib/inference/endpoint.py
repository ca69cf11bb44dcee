"""One HTTP server that answers JSON with JSON, or with server-sent events of JSON, as OpenAI's and its lookalikes do.

Calls that fail for a reason that may pass (no connection, overload, a broken answer) are tried again, each time after a
longer wait, or after what the server asks for; all tries together stay within the caller's time limit. A cancelled call
closes its connection, by which the server sees that nobody waits. Connections are kept per event loop and are closed at
the loop's end, so an endpoint may be used from one `asyncio.run` after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import orjson

from agentfly_lib.errors import AgentFlyError, ConfigError
from agentfly_lib.inference.events import EventReader

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["Endpoint", "EndpointError", "EndpointRefused", "EndpointUnavailable"]

Result = TypeVar("Result")

MAX_ANSWER_BYTES = 64 * 2**20
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0
"""Seconds between two tries, whatever the server asks for."""
_SHOWN = 300
"""Characters of a server's answer that an error quotes."""


class EndpointError(AgentFlyError):
    """A server gave no usable answer."""


class EndpointUnavailable(EndpointError):
    """It cannot be reached, is overloaded, broke, or took too long; later it may answer."""


class EndpointRefused(EndpointError):
    """It will not do this, however often it is asked."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, eq=False)
class Endpoint:
    """Where to ask, and how patiently. Raises `ConfigError` for an address that cannot be one."""

    base_url: str
    """Such as `http://127.0.0.1:8000/v1`."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; none is sent if it is unset."""
    max_connections: int = 256
    connect_timeout_seconds: float = 10.0
    retries: int = 4
    """Tries after the first."""
    backoff_seconds: float = 0.5
    """Longest wait before the second try; it doubles with each further one."""
    _sessions: dict[asyncio.AbstractEventLoop, tuple[ClientSession, AsyncGenerator[ClientSession]]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url = {self.base_url!r} is not an address; write it like http://127.0.0.1:8000/v1")

    async def post(self, path: str, body: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """The JSON object that the server answers at `<base_url>/<path>`.

        seconds: limit of all tries together.
        Raises `EndpointUnavailable` or `EndpointRefused`, which name the address and quote the answer.
        """
        data = _written(body)
        return await self._patiently(path, lambda: self._try(path, data), seconds=seconds)

    async def stream(
        self, path: str, body: Mapping[str, Any], on_event: Callable[[dict[str, Any]], None], *, seconds: float
    ) -> None:
        """As `post`, for an answer that comes as server-sent events, each a JSON object.

        A server that answers with one JSON object all the same has given one event. Once there was an event nothing is
        tried again: `EndpointUnavailable` if the stream breaks off or an event tells of an error.
        """
        data = _written(body)
        await self._patiently(path, lambda: self._try_stream(path, data, on_event), seconds=seconds)

    async def close(self) -> None:
        """Close the connections of this event loop; a later call opens new ones."""
        held = self._sessions.get(asyncio.get_running_loop())
        if held is not None:
            await held[1].aclose()

    async def _patiently(self, path: str, attempt: Callable[[], Awaitable[Result]], *, seconds: float) -> Result:
        last: EndpointUnavailable | None = None
        try:
            async with asyncio.timeout(seconds):
                for number in range(self.retries + 1):
                    try:
                        return await attempt()
                    except _TryAgain as failure:
                        last = EndpointUnavailable(f"{failure} (try {number + 1} of {self.retries + 1})")
                        if number < self.retries:
                            await asyncio.sleep(self._wait(number, failure.asked_to_wait))
        except TimeoutError:
            before = f"; before that: {last}" if last else ""
            raise EndpointUnavailable(f"{self._url(path)} had no answer within {seconds:g} s{before}") from None
        assert last is not None
        raise last

    async def _try(self, path: str, data: bytes) -> dict[str, Any]:
        async with self._posted(path, data) as response:
            return _object(self._url(path), await _body(response))

    async def _try_stream(self, path: str, data: bytes, on_event: Callable[[dict[str, Any]], None]) -> None:
        import aiohttp

        url, begun = self._url(path), False
        async with self._posted(path, data) as response:
            if response.content_type == "application/json":
                on_event(_object(url, await _body(response)))
                return
            reader = EventReader()
            try:
                async for chunk in _chunks(response):
                    for text in reader.feed(chunk):
                        event = _object(url, text)
                        if event.get("error"):
                            raise _TryAgain(f"{url} broke: {_short(json.dumps(event['error']))}")
                        begun = True
                        on_event(event)
                    if reader.done:
                        return
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                if not begun:
                    raise
                raise EndpointUnavailable(f"{url} broke off its answer: {_named(error)}") from error
            except _TryAgain as failure:
                if not begun:
                    raise
                raise EndpointUnavailable(f"{failure}, in the middle of its answer") from failure
        if not begun:
            raise _TryAgain(f"{url} answered with nothing")

    @contextlib.asynccontextmanager
    async def _posted(self, path: str, data: bytes) -> AsyncGenerator[ClientResponse]:
        """The server's answer, if it is one of success."""
        import aiohttp

        key = os.environ.get(self.api_key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else None
        session = await self._session()
        url = self._url(path)
        try:
            async with session.post(url, data=data, headers=headers, allow_redirects=False) as response:
                if response.status == 200:
                    yield response
                    return
                text, asked = _text(await _body(response)), response.headers.get("Retry-After")
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise _TryAgain(f"{url} cannot be reached: {_named(error)}") from error
        if response.status in _TRANSIENT:
            raise _TryAgain(f"{url} answered {response.status}: {_short(text)}", _seconds(asked))
        raise EndpointRefused(f"{url} answered {response.status}: {_short(text)}", status=response.status)

    async def _session(self) -> ClientSession:
        """This event loop's, held by an asynchronous generator: the loop closes those when it ends."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            holder = self._hold(loop)
            self._sessions[loop] = await anext(holder), holder
        return self._sessions[loop][0]

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[ClientSession]:
        import aiohttp

        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.max_connections),
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_timeout_seconds),
        )
        try:
            yield session
        finally:
            self._sessions.pop(loop, None)
            await session.close()

    def _url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/')}/{path}"

    def _wait(self, attempt: int, asked: float | None) -> float:
        if asked is not None:
            return min(asked, _LONGEST_WAIT)
        return min(self.backoff_seconds * 2**attempt, _LONGEST_WAIT) * random.uniform(0.5, 1.0)


class _TryAgain(Exception):
    def __init__(self, message: str, asked_to_wait: float | None = None) -> None:
        super().__init__(message)
        self.asked_to_wait = asked_to_wait


def _written(body: Mapping[str, Any]) -> bytes:
    with contextlib.suppress(TypeError):  # of lone surrogates, large integers, keys that are no text
        data = bytes(memoryview(orjson.dumps(body)))  # its own result keeps a buffer of many times its length
        if b"null" not in data:  # which it makes of NaN and infinities
            return data
    return json.dumps(body).encode()


async def _body(response: ClientResponse) -> bytes:
    announced = response.content_length
    # Most answers say how long they are, and no more than that is read; a compressed one unpacks to anything.
    if announced is not None and announced <= MAX_ANSWER_BYTES and "Content-Encoding" not in response.headers:
        return await response.read()
    return b"".join([chunk async for chunk in _chunks(response)])


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", errors="replace")


async def _chunks(response: ClientResponse) -> AsyncGenerator[bytes]:
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise EndpointRefused(
                f"{response.url} answers with more than {MAX_ANSWER_BYTES} bytes", status=response.status
            )
        yield chunk


def _object(url: str, data: bytes | str) -> dict[str, Any]:
    try:
        answer = orjson.loads(data)
    except ValueError:
        answer = _read_by_json(data)
    if not isinstance(answer, dict):
        raise _TryAgain(f"{url} answered something other than a JSON object: {_short(_text(data))}")
    return answer


def _read_by_json(data: bytes | str) -> Any:
    """What orjson refuses: NaN, infinities, lone surrogates, bytes that are no UTF-8. None if it is no JSON."""
    try:
        return json.loads(_text(data))
    except (ValueError, RecursionError):
        return None


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After header; its other form, a date, is not worth reading."""
    try:
        seconds = float(text) if text else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
