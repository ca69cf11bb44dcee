"""The tools of the MCP servers that a recipe names: each server is asked once in a process, before anything starts."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from agentfly_lib.agents.blocking import run_blocking
from agentfly_lib.configs.agent import McpServerConfig
from agentfly_lib.errors import ConfigError, InfrastructureError, UserError
from agentfly_lib.tools import Tool
from agentfly_lib.tools.mcp_client import HttpServer, McpServer, StdioServer, choose_tools, offered_tools

__all__ = ["tools_of_servers"]


def tools_of_servers(servers: Sequence[McpServerConfig]) -> list[Tool]:
    """All tools of the servers, in order. Raises `ConfigError` naming the server that cannot be asked, or the tool that
    it does not have.
    """
    found: list[Tool] = []
    for index, config in enumerate(servers):
        where = f"agent.mcp_servers.{index}"
        try:
            server = _server(config)
            found += choose_tools(
                server, _offered(server), only=config.tools, prefix=config.prefix, timeout=config.timeout_seconds
            )
        except (UserError, InfrastructureError) as error:
            raise ConfigError(f"{where}: {error}") from error
    return found


@functools.cache
def _offered(server: McpServer) -> tuple[Any, ...]:
    return tuple(run_blocking(lambda: offered_tools(server)))


def _server(config: McpServerConfig) -> McpServer:
    if config.url is not None:
        named = {header: _variable(name) for header, name in config.headers_env.items()}
        token = {} if config.token_env is None else {"Authorization": f"Bearer {_variable(config.token_env)}"}
        return HttpServer(
            url=config.url, headers={**config.headers, **named, **token}, start_seconds=config.start_seconds
        )
    return StdioServer(
        command=(config.command or "", *config.args),
        environment={**config.env, **{name: _variable(name) for name in config.pass_env}},
        folder=config.folder,
        start_seconds=config.start_seconds,
    )


def _variable(name: str) -> str:
    if name not in os.environ:
        raise ConfigError(f"the environment variable {name} is not set")
    return os.environ[name]
