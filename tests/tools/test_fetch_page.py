"""`fetch_page` against a real server on this machine's loopback, which it reaches only where settings allow it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools import ToolCall, ToolContext, ToolResult, execute_calls, get_tool
from agentfly_lib.tools.fetch_page import FetchPageSettings, fetch_page, make_fetch_page
from agentfly_lib.types import Problem

BOMB = gzip.compress(gzip.compress(bytes(10**6)))
PAGES = {
    "/": b"Content-Type: text/html; charset=iso-8859-1\r\n\r\n<h1>Gr\xfc\xdfe</h1><script>no</script>",
    "/plain": b"Content-Type: text/plain\r\n\r\n" + b"0123456789" * 10,
    "/image": b"Content-Type: image/png\r\n\r\nPNG",
    "/strange": b"Content-Type: text/plain; charset=nothing\r\n\r\nok",
    "/bomb": b"Content-Type: text/plain\r\nContent-Encoding: gzip, gzip\r\n\r\n" + BOMB,
    "/slow-encoding": b"Content-Type: text/plain; charset=punycode\r\n\r\n" + b"a-" * 200_000,
    "/to": b"Location: /plain\r\n\r\n",
    "/packed-to": b"Location: /plain\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(10**6)),
    "/round": b"Location: /round\r\n\r\n",
    "/file": b"Location: file:///etc/passwd\r\n\r\n",
    "/meta": b"Location: http://169.254.169.254/latest\r\n\r\n",
}


@pytest.fixture
async def site() -> AsyncIterator[str]:
    release = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        try:
            if path == "/slow":
                await release.wait()
            elif path == "/endless":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            elif path == "/endless-to":
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: /plain\r\n\r\n")
            if path.startswith("/endless"):
                while True:
                    writer.write(b"x" * 65536)
                    await writer.drain()
            elif path in PAGES:
                status = b"302 Found" if b"Location" in PAGES[path] else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n" + PAGES[path])
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        release.set()


def local(**settings):
    return make_fetch_page(FetchPageSettings(allow=("127.0.0.0/8",), **settings))


async def fetch(tool, url: str, **arguments) -> ToolResult:
    context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))
    calls = [ToolCall(id="0", name="fetch_page", arguments={"url": url, **arguments})]
    (result,) = await execute_calls(calls, {"fetch_page": tool}, context, default_timeout=30, max_chars=100)
    return result


@pytest.mark.parametrize(
    ("path", "text"), [("/", "Grüße"), ("/plain", "0123456789" * 10), ("/to", "0123456789" * 10), ("/strange", "ok")]
)
async def test_pages(site, path, text):
    assert (await fetch(local(), site + path)).observation == text


async def test_the_body_of_a_redirect_is_not_read(site, monkeypatch):
    """A small one unpacks to gigabytes, and an endless one has no end."""
    unpacked = Mock()
    monkeypatch.setattr("httpx._decoders.GZipDecoder.decode", unpacked)
    for path in ("/packed-to", "/endless-to"):
        assert (await fetch(local(), site + path)).observation == "0123456789" * 10
    unpacked.assert_not_called()


async def test_a_page_does_not_choose_a_decoder_that_takes_minutes(site):
    assert (await fetch(local(), site + "/slow-encoding")).observation.startswith("a-a-")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/none", "answers with status 404"),
        ("/bomb", "is compressed, which was not asked for"),
        ("/image", "is no text but image/png"),
        ("/round", "redirects more than 5 times"),
        ("/file", "file"),
        ("/meta", "169.254.169.254 is no public address"),
    ],
)
async def test_what_cannot_be_read_says_why(site, path, message):
    result = await fetch(local(), site + path)
    assert message in (result.error or "")


@pytest.mark.parametrize(
    "url", ["", "no url", "file:///etc/passwd", "http://", "http://[::1", "http://a b/", "gopher://x/"]
)
async def test_no_addresses(url):
    result = await fetch(local(), url)
    assert result.error is not None
    assert "root:" not in result.observation


async def test_this_machine_is_out_of_reach_by_default(site):
    result = await fetch(fetch_page, site + "/plain")
    assert result.error == "127.0.0.1 is no public address"


async def test_a_long_page_in_parts(site):
    tool = local(page_chars=60)
    first = await fetch(tool, site + "/plain")
    assert first.observation == "0123456789" * 6 + "\n[40 more characters; go on with offset=60]"
    assert (await fetch(tool, site + "/plain", offset=60)).observation == "0123456789" * 4
    assert (await fetch(tool, site + "/plain", offset=500)).observation == "(no text)"


async def test_size_is_bounded(site):
    result = await fetch(local(max_bytes=100_000, page_chars=10), site + "/endless")
    assert result.observation == "x" * 10 + "\n[99990 more characters; go on with offset=10]"


async def test_time_is_bounded(site):
    result = await fetch(local(seconds=0.2), site + "/slow")
    assert "was not read within 0.2 s" in (result.error or "")


def test_settings():
    assert get_tool("fetch_page") is fetch_page
    with pytest.raises(ConfigError, match=r"tool_settings.fetch_page.allow = \['inside'\]"):
        fetch_page.with_settings({"allow": ["inside"]})
