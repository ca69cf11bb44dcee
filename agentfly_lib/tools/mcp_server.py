"""Our tools, served as an MCP server, over standard input and output or over streamable HTTP.

    python -m agentfly_lib.tools.mcp_server calculator package.module:my_tool
    python -m agentfly_lib.tools.mcp_server calculator --http 8000

A stdio server has one client, whose calls belong to one trajectory: the interpreter keeps its variables. HTTP calls
know nothing of each other, so each is a trajectory of its own. HTTP is served on this machine's loopback address alone.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from agentfly_lib.tools.call import ToolCall, ToolContext, ToolResult
from agentfly_lib.tools.execute import execute_calls
from agentfly_lib.tools.registry import get_tool
from agentfly_lib.tools.tool import Tool
from agentfly_lib.types import Problem

__all__ = ["main", "mcp_server", "serve_http", "serve_stdio"]

CALL_SECONDS = 60.0
"""Limit of a call whose tool sets none."""
MAX_CHARS = 100_000
HOST = "127.0.0.1"


def mcp_server(tools: Iterable[Tool], *, context: ToolContext | None = None, name: str = "agentfly") -> Any:
    """An `mcp.server.Server` with these tools. Without a context, every call has one of its own."""
    import mcp_types
    from mcp.server import Server

    from agentfly_lib import __version__

    named: Mapping[str, Tool] = {tool.name: tool for tool in tools}
    for tool in named.values():
        tool.check()
    listing = [
        mcp_types.Tool(name=tool.name, description=tool.description, input_schema=tool.parameters)
        for tool in named.values()
    ]

    async def list_tools(_: Any, __: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=listing)

    async def call_tool(_: Any, request: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        call = ToolCall(id="call-0", name=request.name, arguments=request.arguments or {})
        own = new_context() if context is None else context
        try:
            (result,) = await execute_calls([call], named, own, default_timeout=CALL_SECONDS, max_chars=MAX_CHARS)
        finally:
            if context is None:
                await own.resources.aclose()
        return _written(result)

    return Server(name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def new_context() -> ToolContext:
    """A trajectory for calls that come from outside."""
    name = f"mcp-{uuid4().hex[:12]}"
    return ToolContext(trajectory_id=f"{name}/0", group_id=name, problem=Problem(id=name, messages=()))


async def serve_stdio(tools: Iterable[Tool]) -> None:
    """Serves until standard input ends."""
    from mcp.server.stdio import stdio_server

    context = new_context()
    server = mcp_server(tools, context=context)
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        await context.resources.aclose()


async def serve_http(tools: Iterable[Tool], port: int) -> None:
    """Serves at `http://127.0.0.1:<port>/mcp` until it is cancelled; port 0 takes a free one, which is logged."""
    import uvicorn

    application = mcp_server(tools).streamable_http_app(host=HOST)
    await uvicorn.Server(uvicorn.Config(application, host=HOST, port=port, log_level="info")).serve()


def main(arguments: list[str] | None = None) -> None:
    """See above."""
    parser = argparse.ArgumentParser(prog="python -m agentfly_lib.tools.mcp_server", description="Serve tools by MCP.")
    parser.add_argument("tools", nargs="+", help="tools we ship, or package.module:name")
    parser.add_argument("--http", type=int, metavar="PORT", help="serve HTTP on this port instead of stdio")
    options = parser.parse_args(arguments)
    tools = [get_tool(name) for name in options.tools]
    asyncio.run(serve_stdio(tools) if options.http is None else serve_http(tools, options.http))


def _written(result: ToolResult) -> Any:
    import mcp_types

    content: list[Any] = [mcp_types.TextContent(text=result.observation)]
    for image in result.images:
        kind, is_data, data = image.removeprefix("data:").partition(";base64,")
        if is_data:
            content.append(mcp_types.ImageContent(data=data, mime_type=kind))
        else:
            content.append(mcp_types.TextContent(text=f"[an image: {image}]"))
    return mcp_types.CallToolResult(content=content, is_error=result.error is not None)


if __name__ == "__main__":
    main()
