"""HTTP to MCP servers, within bounds: whatever a server sends, it cannot fill this machine's memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

__all__ = ["MAX_ANSWER_BYTES", "BoundedTransport"]

MAX_ANSWER_BYTES = 64 << 20
"""Of one answer; a stream of events that is longer is opened anew."""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Bodies fail with `httpx2.StreamError`, by which a call learns why it has no result: those that are too long, and
    those that are compressed, though they were asked not to be (a few bytes could unpack to gigabytes)."""

    def __init__(self, inner: httpx2.AsyncBaseTransport | None = None, *, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._inner = inner or httpx2.AsyncHTTPTransport(trust_env=False)
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Body(response, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self._response = response
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        encoding = self._response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise httpx2.StreamError("the answer is compressed, which was not asked for")
        size = 0
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        async for piece in self._response.stream:
            size += len(piece)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"the answer has more than {self._max_bytes} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()
