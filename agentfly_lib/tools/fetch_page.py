"""`fetch_page`: the text of a web page. Public addresses only (see `public_http`), bounded in size and time."""

from __future__ import annotations

import asyncio
import codecs
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from agentfly_lib.bounded import call_in_thread
from agentfly_lib.tools.call import ToolResult
from agentfly_lib.tools.html_text import html_to_text
from agentfly_lib.tools.settings import ToolSettings
from agentfly_lib.tools.tool import Tool, tool

__all__ = ["FetchPageSettings", "fetch_page", "make_fetch_page"]

_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/xhtml+xml")


class FetchPageSettings(ToolSettings):
    """What may be fetched."""

    seconds: PositiveFloat = 15.0
    """Limit from the first connection to the last byte, redirects included."""
    max_bytes: PositiveInt = 2_000_000
    """Of a page; the rest is not read."""
    max_redirects: NonNegativeInt = 5
    page_chars: PositiveInt = 4000
    """Shown at once; the model can ask for what follows."""
    allow: tuple[str, ...] = ()
    """Networks that may be reached although they are not public, such as `10.1.0.0/16`."""
    deny: tuple[str, ...] = ()
    """Networks that may not be reached although they are public or in `allow`: your own, where it has addresses of the
    internet. What this machine reaches without a router need not be named; only `allow` opens it."""
    user_agent: Annotated[str, Field(min_length=1)] = "agentfly"

    @field_validator("allow", "deny")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        from agentfly_lib.tools.public_http import parse_networks

        parse_networks(networks)
        return networks


def make_fetch_page(settings: FetchPageSettings) -> Tool:
    """The tool with these settings."""

    @tool(timeout=settings.seconds + 10.0, max_chars=settings.page_chars + 200, settings=settings, make=make_fetch_page)
    async def fetch_page(url: str, offset: Annotated[int, Field(ge=0)] = 0) -> ToolResult | str:
        """Read the text of a web page.

        Args:
            url: Its address, beginning with http:// or https://.
            offset: Where to begin, in characters of the text; for going on with a long page.
        """
        try:
            async with asyncio.timeout(settings.seconds):
                text = await _fetch(url, settings)
        except TimeoutError:
            return ToolResult.refused(f"{url} was not read within {settings.seconds:g} s")
        except _Unreadable as error:
            return ToolResult.refused(str(error))
        part = text[offset : offset + settings.page_chars]
        left = len(text) - offset - len(part)
        if left > 0:
            part += f"\n[{left} more characters; go on with offset={offset + len(part)}]"
        return part or "(no text)"

    return fetch_page


class _Unreadable(Exception):
    """Why there is no text, for the model."""


async def _fetch(url: str, settings: FetchPageSettings) -> str:
    import httpx

    from agentfly_lib.tools.public_http import AddressRefused, PublicTransport, parse_networks, streamed

    client = httpx.AsyncClient(
        transport=PublicTransport(allowed=parse_networks(settings.allow), denied=parse_networks(settings.deny)),
        timeout=settings.seconds,
        trust_env=False,
        headers={"User-Agent": settings.user_agent, "Accept-Encoding": "identity"},
    )
    try:
        async with client, streamed(client, url, redirects=settings.max_redirects) as response:
            return await _read(response, settings)
    except (AddressRefused, httpx.TooManyRedirects) as error:
        raise _Unreadable(str(error)) from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, ValueError) as error:
        raise _Unreadable(f"{url} cannot be read: {error or type(error).__name__}") from error


async def _read(response: Any, settings: FetchPageSettings) -> str:
    if response.status_code != 200:
        raise _Unreadable(f"{response.url} answers with status {response.status_code}")
    kind = response.headers.get("content-type", "text/html").partition(";")[0].strip().lower()
    if not kind.startswith(_TEXT_TYPES):
        raise _Unreadable(f"{response.url} is no text but {kind}")
    from agentfly_lib.tools.public_http import check_not_compressed

    check_not_compressed(response)
    data = bytearray()
    async for chunk in response.aiter_bytes(1 << 14):
        data += chunk[: settings.max_bytes - len(data)]
        if len(data) >= settings.max_bytes:
            break
    charset = response.charset_encoding

    def readable() -> str:
        text = _decoded(bytes(data), charset)
        return html_to_text(text) if "html" in kind else text

    return await call_in_thread(readable)


def _decoded(data: bytes, charset: str | None) -> str:
    """The text in the encoding that the page names, if pages are written in it; else as UTF-8."""
    try:
        name = codecs.lookup(charset or "utf-8").name
        return data.decode("utf-8" if name in _NO_ENCODINGS_OF_PAGES else name, "replace")
    except (LookupError, ValueError):  # nobody knows it, or it is no encoding of text
        return data.decode("utf-8", "replace")


_NO_ENCODINGS_OF_PAGES = frozenset({"punycode", "idna", "undefined", "unicode_escape", "raw_unicode_escape"})
"""Python knows them; the first takes quadratic time."""


fetch_page = make_fetch_page(FetchPageSettings())
"""With the settings that `FetchPageSettings` says."""
