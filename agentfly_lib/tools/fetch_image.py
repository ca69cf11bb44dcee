"""Pictures from the web, by hosts that are named: for datasets and messages whose images are addresses.

Off unless hosts are given. An address is asked only if its host is one of them and is public (`public_http`), over as
many redirects as stay on these hosts, and no more than a picture's worth of bytes is read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from agentfly_lib.chat.images import MAX_BYTES
from agentfly_lib.errors import ImageError

__all__ = ["image_fetcher"]

_SECONDS = 30.0
_REDIRECTS = 3
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity"}
"""What is compressed could unpack to any size."""


def image_fetcher(
    hosts: Sequence[str], *, seconds: float = _SECONDS, transport: Any = None
) -> Callable[[str], bytes] | None:
    """What fetches addresses of these hosts (`example.org`; `*.example.org` for those below it); None without hosts.

    It blocks for at most `seconds`, may be called in any thread, and raises `ImageError`. `transport` is an httpx
    transport in place of the one that reaches public addresses alone.
    """
    if not hosts:
        return None
    allowed = tuple(host.lower().rstrip(".") for host in hosts)

    def fetch(url: str) -> bytes:
        found: list[bytes | BaseException] = []

        def work() -> None:
            try:
                found.append(asyncio.run(_fetched(url, allowed, seconds, transport)))
            except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
                found.append(error)

        worker = threading.Thread(target=work, name="agentfly-image", daemon=True)  # a loop may be running in this one
        worker.start()
        worker.join(seconds + 10)
        if not found:
            raise ImageError(f"{url} was not read within {seconds:g} s")
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    return fetch


async def _fetched(url: str, allowed: tuple[str, ...], seconds: float, transport: Any) -> bytes:
    import httpx

    from agentfly_lib.tools.public_http import PublicTransport, streamed

    try:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(transport=transport or PublicTransport(), trust_env=False, headers=_HEADERS) as client,
            streamed(client, url, redirects=_REDIRECTS, check=lambda each: _check_host(each, allowed)) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise ImageError(f"{response.url} answered {response.status_code}")
            return await _body(response, str(response.url))
    except TimeoutError as error:
        raise ImageError(f"{url} was not read within {seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ImageError(f"{url} cannot be read: {error}") from error


async def _body(response: Any, url: str) -> bytes:
    from agentfly_lib.tools.public_http import check_not_compressed

    check_not_compressed(response)
    data = bytearray()
    async for piece in response.aiter_bytes(1 << 16):
        data += piece
        if len(data) > MAX_BYTES:
            raise ImageError(f"{url} is larger than {MAX_BYTES >> 20} MiB")
    return bytes(data)


def _check_host(url: str, allowed: tuple[str, ...]) -> None:
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme not in ("http", "https"):
        raise ImageError(f"{url!r} is no http or https address")
    if not any(host == each or (each.startswith("*.") and host.endswith(each[1:])) for each in allowed):
        raise ImageError(f"the host {host!r} is none of those that images may come from: {', '.join(allowed)}")
