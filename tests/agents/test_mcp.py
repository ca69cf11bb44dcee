"""MCP servers that a recipe names: their tools are the agent's, and what is wrong with them is known before a run."""

from __future__ import annotations

import sys

import psutil
import pytest

from agentfly_lib.agents import HFAgent, build_agent
from agentfly_lib.agents.agent import tools_of
from agentfly_lib.configs import HFAgentConfig
from agentfly_lib.configs.load import load_config
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.preflight import check_run

SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer

open(sys.argv[1], "a").write("started\\n")
server = MCPServer("shop")
count = 0

@server.tool()
def visit() -> str:
    "Visits the shop."
    global count
    count += 1
    return f"visit {count} {os.environ.get('SHOP')} {os.environ.get('KEY')}"

@server.tool()
def leave() -> str:
    os._exit(1)

server.run("stdio")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server's table in a recipe, and how often it was started."""
    folder = tmp_path_factory.mktemp("shop")
    program, log = folder / "shop.py", folder / "starts"
    program.write_text(SERVER)
    table = {"command": sys.executable, "args": [str(program), str(log)]}
    return table, lambda: len(log.read_text().splitlines()) if log.exists() else 0


def config(*servers, **agent) -> HFAgentConfig:
    return HFAgentConfig.model_validate({"mcp_servers": servers, **agent})


async def test_a_recipes_server_is_asked_once_and_every_trajectory_has_its_own(model_path, server, monkeypatch):
    table, starts = server
    monkeypatch.setenv("KEY", "secret")
    table = table | {"prefix": "shop_", "env": {"SHOP": "corner"}, "pass_env": ["KEY"], "timeout_seconds": 30}
    settings = config(table, tools=["calculator"])
    first = build_agent(settings, model_path)
    assert list(first.tools) == ["calculator", "shop_visit", "shop_leave"]
    assert "Visits the shop." in str(first.schemas)
    before = {child.pid for child in psutil.Process().children()}
    call = '<tool_call>{"name": "shop_visit", "arguments": {}}</tool_call>'
    leave = '<tool_call>{"name": "shop_leave", "arguments": {}}</tool_call>'
    script = [call, call, leave, call, "done", call, "done"]
    engine = ScriptedGenerate(script, format=first.chat)
    agent = build_agent(settings, model_path, backend=engine, reward_fn=None)
    assert starts() == 1  # both agents
    result = await agent.run("Visit.", num_chains=2, max_turns=5, max_concurrent_chains=1)
    told = [[m["content"] for m in t.messages if m["role"] == "tool"] for t in result.trajectories]
    again = "visit 1 corner secret"  # from a new server: the first one died, and the chain went on
    assert told == [
        ["visit 1 corner secret", "visit 2 corner secret", "Error: leave failed: Connection closed", again],
        ["visit 1 corner secret"],
    ]
    assert starts() == 4
    assert {child.pid for child in psutil.Process().children()} <= before


def test_without_named_tools_the_agent_has_the_servers_alone(server):
    table, _ = server
    assert list(tools_of(config({**table, "tools": ["visit"]}))) == ["visit"]


def test_a_preflight_says_what_is_wrong_and_where(server, tmp_path):
    table, _ = server
    recipe = tmp_path / "recipe.toml"
    head = '[run]\nname = "x"\nsteps = 1\n[model]\ntype = "tiny"\n[data]\ntype = "arithmetic"\n[[agent.mcp_servers]]\n'
    recipe.write_text(f'{head}command = "{table["command"]}"\nargs = ["-c", "raise SystemExit(\'no shop\')"]\n')
    with pytest.raises(ConfigError, match=r"agent\.mcp_servers\.0: MCP server .*no shop"):
        check_run(load_config(recipe))
    recipe.write_text(f'{head}comand = "python"\n')
    with pytest.raises(ConfigError, match=r"unknown key agent\.mcp_servers\.0\.comand.*did you mean .*command"):
        load_config(recipe)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"command": "no-such-program"}, r"mcp_servers\.0.*there is no program 'no-such-program'"),
        ({"command": "sleep", "args": ["1000"], "start_seconds": 0.3}, r"mcp_servers\.0.*within 0\.3 s"),
        ({"url": "http://127.0.0.1:9/mcp", "start_seconds": 5}, r"mcp_servers\.0.*127\.0\.0\.1:9"),
        ({"url": "http://127.0.0.1:9/mcp", "token_env": "NO_SUCH_VARIABLE"}, "variable NO_SUCH_VARIABLE is not set"),
        ({"command": sys.executable, "pass_env": ["NO_SUCH_VARIABLE"]}, "variable NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_server_that_cannot_be_asked_is_named(table, message):
    with pytest.raises(ConfigError, match=message):
        tools_of(config(table))


def test_a_tool_that_it_does_not_have(server):
    table, _ = server
    with pytest.raises(ConfigError, match=r"mcp_servers\.0.*has no tool 'buy'; it has: leave, visit"):
        tools_of(config({**table, "tools": ["buy"]}))


def test_two_servers_with_the_same_names_need_a_prefix(server):
    table, _ = server
    with pytest.raises(ConfigError, match="two tools are called 'visit'"):
        tools_of(config(table, table))
    assert len(tools_of(config(table, {**table, "prefix": "b_"}))) == 4


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "give command, for a program, or url"),
        ({"command": "x", "url": "http://x"}, "not both"),
        ({"command": "x", "headers": {"a": "b"}}, "headers is for a server with url"),
        ({"url": "http://x", "args": ["a"]}, "args is for a server with command"),
        ({"url": "ftp://x"}, "url"),
        ({"command": "x", "prefix": "a b"}, "prefix"),
        ({"comand": "x"}, "comand"),
    ],
)
def test_tables_that_cannot_be(table, message):
    with pytest.raises(ValueError, match=message):
        config(table)


def test_agents_of_ones_own_making_take_the_tools_too(model_path, server):
    assert list(HFAgent.from_config(config(server[0]), model_path).tools) == ["visit", "leave"]
