"""Tools of MCP servers as our tools.

    server = StdioServer(command=("uvx", "mcp-server-time"))
    tools = await mcp_tools(server)

A server is a resource like any other: every trajectory that calls one of its tools has a connection of its own (and of
a stdio server a process of its own), opened at the first call and closed at the trajectory's end. A server that dies is
an error for the call that was in flight; the next call starts or reaches it anew.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentfly_lib.errors import ConfigError, InfrastructureError
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.given_schema import GivenArguments
from agentfly_lib.tools.tool import Tool

__all__ = ["HttpServer", "McpConnection", "McpServer", "StdioServer", "choose_tools", "mcp_tools", "offered_tools"]

START_SECONDS = 30.0
"""Limit for reaching a server and greeting it."""
STOP_SECONDS = 10.0
QUIET_SECONDS = 600.0
"""So long a server may say nothing while it is listened to."""
_PAGES = 100
_CONTEXT = "agentfly context"
"""No argument can be called this."""


@dataclass(frozen=True, kw_only=True)
class McpServer(ABC):
    """Where a server is."""

    start_seconds: float = START_SECONDS

    @abstractmethod
    def check(self) -> None:
        """Raises `ConfigError` if it cannot be there."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[McpConnection]:
        """A connection, for the length of the block."""
        connection = McpConnection(self)
        try:
            await connection.start()
            yield connection
        finally:
            await connection.close()

    @abstractmethod
    def transport(self, log: Any) -> Any:
        """The `mcp` package's transport; `log` is a file for what the server says besides."""


@dataclass(frozen=True, kw_only=True)
class StdioServer(McpServer):
    """A program that is started and spoken to through its standard input and output."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """On top of a few harmless variables; nothing else of our own environment reaches the server."""
    folder: Path | None = None

    def check(self) -> None:
        if not self.command or shutil.which(self.command[0], path=self.environment.get("PATH")) is None:
            raise ConfigError(f"MCP server {self}: there is no program {' '.join(self.command[:1])!r}")

    def transport(self, log: Any) -> Any:
        from mcp import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=self.command[0], args=list(self.command[1:]), env=dict(self.environment), cwd=self.folder
        )
        return stdio_client(parameters, errlog=log)

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True, kw_only=True)
class HttpServer(McpServer):
    """A server that is reached by streamable HTTP."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)

    def check(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"MCP server {self.url!r}: its url must begin with http:// or https://")

    def transport(self, log: Any) -> Any:
        return self._connect()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        from httpx2 import AsyncClient, Timeout
        from mcp.client.streamable_http import streamable_http_client

        from agentfly_lib.tools.mcp_transport import BoundedTransport

        # A call's own limit is the tool's.
        limits = Timeout(self.start_seconds, read=QUIET_SECONDS)
        async with (
            AsyncClient(
                headers=dict(self.headers), timeout=limits, transport=BoundedTransport(), trust_env=False
            ) as client,
            streamable_http_client(self.url, http_client=client) as streams,
        ):
            yield streams

    def __str__(self) -> str:
        return self.url


class McpConnection:
    """A live connection. It lives in a task of its own, because what opens it must also close it."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Connects, if it is not connected. Raises `InfrastructureError`."""
        async with self._starting:
            if self._task is not None and not self._task.done():
                return
            ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._ended = asyncio.Event()
            self._task = asyncio.ensure_future(self._live(ready, self._ended))
            try:
                async with asyncio.timeout(self._server.start_seconds):
                    self._client = await ready
            except BaseException as error:
                self._task.cancel()  # it may still be waiting for a greeting
                if isinstance(error, TimeoutError):
                    waited = self._server.start_seconds
                    raise InfrastructureError(
                        f"MCP server {self._server} did not answer within {waited:g} s", where="tools"
                    ) from error
                raise

    async def close(self) -> None:
        """Disconnects, and ends a server that was started for this. Bounded in time."""
        self._ended.set()
        if self._task is None:
            return
        _, unfinished = await asyncio.wait({self._task}, timeout=STOP_SECONDS)
        if unfinished:
            self._task.cancel()
            await asyncio.wait(unfinished, timeout=STOP_SECONDS)

    async def list_tools(self) -> list[Any]:
        """All of the server's tools, as the `mcp` package describes them."""
        found, cursor = [], None
        for _ in range(_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls a tool. Raises `mcp.MCPError` for what the server refuses, and if it dies meanwhile."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        await self.start()
        try:
            return await self._client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                await self.close()
            raise

    async def _live(self, ready: asyncio.Future[Any], ended: asyncio.Event) -> None:
        from mcp import Client

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            try:
                async with Client(self._server.transport(log), cache=None) as client:
                    if not ready.done():
                        ready.set_result(client)
                    await ended.wait()
            except Exception as error:  # noqa: BLE001  whoever waits for the connection hears of it
                if not ready.done():
                    said = _tail(log)
                    ready.set_exception(
                        InfrastructureError(
                            f"MCP server {self._server}: {_first(error)}. {said}".strip(), where="tools"
                        )
                    )


async def mcp_tools(
    server: McpServer, *, only: Iterable[str] | None = None, prefix: str = "", timeout: float | None = None
) -> list[Tool]:
    """A server's tools, as tools for an agent. Connects once to ask for them.

    only: names of the tools wanted; all if None. prefix: put before the names, where two servers use the same ones.
    timeout: seconds of a call, the agent's limit if None.

    Raises `ConfigError` for a name that the server has not, `InfrastructureError` if it cannot be reached.
    """
    return choose_tools(server, await offered_tools(server), only=only, prefix=prefix, timeout=timeout)


async def offered_tools(server: McpServer) -> list[Any]:
    """What a server says of its tools, as the `mcp` package describes them. Raises as `mcp_tools`."""
    server.check()
    async with server.open() as connection:
        try:
            async with asyncio.timeout(server.start_seconds):
                return await connection.list_tools()
        except TimeoutError as error:
            waited = server.start_seconds
            raise InfrastructureError(
                f"MCP server {server} did not list its tools within {waited:g} s", where="tools"
            ) from error


def choose_tools(
    server: McpServer, offered: Iterable[Any], *, only: Iterable[str] | None, prefix: str, timeout: float | None
) -> list[Tool]:
    """Those wanted of what a server offers, as ours. Raises `ConfigError` for a name that it does not offer."""
    named = {tool.name: tool for tool in offered}
    wanted = list(named if only is None else only)
    for name in wanted:
        if name not in named:
            raise ConfigError(f"MCP server {server} has no tool {name!r}; it has: {', '.join(sorted(named))}")
    return [_as_tool(server, named[name], prefix, timeout) for name in wanted]


def _as_tool(server: McpServer, offered: Any, prefix: str, timeout: float | None) -> Tool:
    async def call(**keywords: Any) -> ToolResult:
        from mcp import MCPError

        context: ToolContext = keywords.pop(_CONTEXT)
        try:
            return _read(await context.resources[server].call(offered.name, keywords))
        except (MCPError, InfrastructureError) as error:
            message = f"{offered.name} failed: {error}"
            return ToolResult(observation=f"Error: {message}", error=message)

    description = offered.description or offered.title or ""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", prefix + offered.name)[:64]
    try:
        signature = GivenArguments(schema=offered.input_schema, description=description, context_name=_CONTEXT)
    except ConfigError as error:
        raise ConfigError(f"MCP server {server}, tool {offered.name!r}: {error}") from error
    return Tool(name=name, function=call, summary=description, needs=server, timeout=timeout, signature=signature)


def _read(result: Any) -> ToolResult:
    """Texts one below the other; images as bytes; what is neither is named."""
    texts: list[str] = []
    images: list[bytes] = []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "image":
            try:
                images.append(base64.b64decode(block.data, validate=True))
            except (binascii.Error, ValueError):
                texts.append("[image that cannot be read]")
        elif block.type == "resource" and isinstance(getattr(block.resource, "text", None), str):
            texts.append(block.resource.text)
        else:
            texts.append(f"[{block.type}]")
    if not result.content and result.structured_content is not None:
        import json

        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts) or "(no output)"
    return ToolResult(observation=text, error=text if result.is_error else None, images=tuple(images))


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".strip(": ")


def _tail(log: Any) -> str:
    log.seek(0)
    return " ".join(log.read()[-1000:].split())
