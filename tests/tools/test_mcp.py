"""MCP both ways, each against a real process on the other side: a server of the `mcp` package's, and our own."""

from __future__ import annotations

import asyncio
import functools
import gzip
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx2
import mcp_types
import psutil
import pytest

from agentfly_lib.errors import ConfigError, InfrastructureError
from agentfly_lib.tools import Tool, ToolCall, ToolContext, ToolResult, calculator, execute_calls, given_schema
from agentfly_lib.tools.given_schema import GivenArguments
from agentfly_lib.tools.mcp_client import HttpServer, StdioServer, _read, mcp_tools
from agentfly_lib.tools.mcp_transport import BoundedTransport
from agentfly_lib.tools.schema import ArgumentError
from agentfly_lib.types import Problem

FOREIGN = """
import asyncio, os, sys
from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("foreign")
count = 0

@server.tool()
def add(a: int, b: int = 1) -> int:
    "Adds two numbers."
    return a + b

@server.tool()
def counted() -> str:
    global count
    count += 1
    return str(count)

@server.tool()
def picture() -> Image:
    return Image(data=b"\\x89PNG not really", format="png")

@server.tool()
def fails() -> str:
    raise ValueError("no such city")

@server.tool()
def dies() -> str:
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)

@server.tool()
async def hangs() -> str:
    await asyncio.Event().wait()

@server.tool()
def long() -> str:
    return "x" * 200_000

@server.tool()
def environment() -> str:
    return ",".join(sorted(os.environ))

server.run(sys.argv[1]) if sys.argv[1] == "stdio" else server.run("streamable-http", port=int(sys.argv[2]))
"""


@pytest.fixture(scope="session")
def foreign(tmp_path_factory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("mcp") / "foreign.py"
    path.write_text(textwrap.dedent(FOREIGN))
    return (sys.executable, str(path))


@pytest.fixture(scope="session")
def foreign_tools(foreign) -> list[Tool]:
    return asyncio.run(mcp_tools(StdioServer(command=(*foreign, "stdio"), environment={"MODE": "x"})))


class Trajectory:
    """Calls of one trajectory."""

    def __init__(self, tools: list[Tool]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))

    async def __call__(self, name: str, timeout: float = 30.0, **arguments) -> ToolResult:
        calls = [ToolCall(id="0", name=name, arguments=arguments)]
        (result,) = await execute_calls(calls, self.tools, self.context, default_timeout=timeout, max_chars=9999)
        return result


@asynccontextmanager
async def trajectory(tools: list[Tool]) -> AsyncIterator[Trajectory]:
    run = Trajectory(tools)
    try:
        yield run
    finally:
        await run.context.resources.aclose()


@asynccontextmanager
async def served(*command: str, says: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A server program that listens, and its port."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while says not in (line := (await process.stderr.readline()).decode()):
                assert line, "it ended"
        yield process, int(line.split(says)[1].split()[0])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class TestForeignTools:
    async def test_they_look_and_work_like_ours(self, foreign_tools, monkeypatch):
        monkeypatch.setenv("A_SECRET", "ours")
        async with trajectory(foreign_tools) as run:
            schema = run.tools["add"].schema["function"]
            assert (schema["name"], schema["description"]) == ("add", "Adds two numbers.")
            assert schema["parameters"]["required"] == ["a"]
            assert (await run("add", a=2, b=3)).observation == "5"
            assert "'a' is a required property" in ((await run("add")).error or "")
            assert "argument a: 'x' is not of type 'integer'" in ((await run("add", a="x")).error or "")
            assert (await run("picture")).images == ("data:image/png;base64,iVBORyBub3QgcmVhbGx5",)
            failed = await run("fails")
            assert failed.observation == failed.error == "Error executing tool fails"
            names = (await run("environment")).observation.split(",")
            assert "MODE" in names
            assert "A_SECRET" not in names

    async def test_every_trajectory_has_a_server_of_its_own_until_its_end(self, foreign_tools):
        before = {child.pid for child in psutil.Process().children()}
        one, two = Trajectory(foreign_tools), Trajectory(foreign_tools)
        counts = [(await run("counted")).observation for run in (one, one, two)]
        assert counts == ["1", "2", "1"]
        for run in (one, two):
            await run.context.resources.aclose()
        assert {child.pid for child in psutil.Process().children()} <= before

    async def test_one_that_hangs_or_dies_in_a_call_is_an_error_and_the_next_call_finds_one(self, foreign_tools):
        async with trajectory(foreign_tools) as run:
            await run("counted")
            assert (await run("hangs", timeout=0.3)).error == "hangs did not answer within 0.3 seconds."
            assert (await run("counted")).observation == "2"
            assert (await run("dies")).error == "dies failed: Connection closed"
            assert (await run("counted")).observation == "1"

    async def test_over_http_and_dying_there(self, foreign):
        async with served(*foreign, "http", "0", says="http://127.0.0.1:") as (process, port):
            tools = await mcp_tools(HttpServer(url=f"http://127.0.0.1:{port}/mcp"), prefix="far_", only=["add", "dies"])
            async with trajectory(tools) as run:
                assert (await run("far_add", a=2)).observation == "3"
                assert "Connection closed" in ((await run("far_dies")).error or "")
                await process.wait()
                again = await run("far_add", a=2)
                assert again.error is not None

    async def test_an_answer_over_http_without_end_is_not_read(self, foreign, monkeypatch):
        monkeypatch.setitem(BoundedTransport.__init__.__kwdefaults__, "max_bytes", 100_000)
        async with served(*foreign, "http", "0", says="http://127.0.0.1:") as (_, port):
            tools = await mcp_tools(HttpServer(url=f"http://127.0.0.1:{port}/mcp"), only=["add", "long"])
            async with trajectory(tools) as run:
                assert "failed: " in ((await run("long")).error or "")
                assert (await run("add", a=2)).observation == "3"

    async def test_names_that_are_wanted(self, foreign):
        server = StdioServer(command=(*foreign, "stdio"))
        with pytest.raises(ConfigError, match="has no tool 'sub'; it has: add, counted"):
            await mcp_tools(server, only=["sub"])

    async def test_servers_that_are_not_there(self):
        with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
            await mcp_tools(StdioServer(command=("no-such-program",)))
        with pytest.raises(ConfigError, match="must begin with http"):
            await mcp_tools(HttpServer(url="x"))
        with pytest.raises(InfrastructureError, match=r"boom"):
            await mcp_tools(StdioServer(command=(sys.executable, "-S", "-c", "raise SystemExit('boom')")))
        with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9/mcp"):
            await mcp_tools(HttpServer(url="http://127.0.0.1:9/mcp"))
        with pytest.raises(InfrastructureError, match=r"did not answer within 0\.3 s"):
            await mcp_tools(StdioServer(command=("sleep", "1000"), start_seconds=0.3))


OURS = ("-m", "agentfly_lib.tools.mcp_server", "calculator", "code_interpreter")


class TestOurTools:
    @pytest.mark.usefixtures("sandboxes")
    async def test_over_stdio(self):
        async with trajectory(await mcp_tools(StdioServer(command=(sys.executable, *OURS)))) as run:
            assert run.tools["calculator"].schema == calculator.schema
            assert (await run("calculator", expression="6 * 7")).observation == "42"
            failed = await run("calculator", expression="1 / 0")
            assert failed.observation == failed.error == "Error: division by zero"
            await run("code_interpreter", code="x = 41")
            assert (await run("code_interpreter", code="x + 1")).observation == "42"

    @pytest.mark.usefixtures("sandboxes")
    async def test_over_http_calls_know_nothing_of_each_other(self):
        async with (
            served(sys.executable, *OURS, "--http", "0", says="http://127.0.0.1:") as (_, port),
            trajectory(await mcp_tools(HttpServer(url=f"http://127.0.0.1:{port}/mcp"))) as run,
        ):
            assert (await run("calculator", expression="6 * 7")).observation == "42"
            await run("code_interpreter", code="x = 41")
            assert "NameError" in (await run("code_interpreter", code="x + 1")).observation


class TestGivenSchemas:
    def test_every_culprit_is_named(self):
        given = GivenArguments(
            schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}, description=""
        )
        with pytest.raises(
            ArgumentError, match=r"'b' is a required property; argument a: 'x' is not of type 'integer'"
        ):
            given.validate({"a": "x"})
        assert given.validate({"b": 1, "c": 2}) == {"b": 1, "c": 2}

    def test_what_is_no_schema(self):
        with pytest.raises(ConfigError, match="not a JSON Schema"):
            GivenArguments(schema={"type": "nothing"}, description="")

    def test_nothing_is_fetched_for_a_reference(self):
        schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
        with pytest.raises(ArgumentError, match=r"refers to 'http://127.0.0.1:9/schema.json', which is nowhere"):
            GivenArguments(schema=schema, description="").validate({"a": 1})

    def test_patterns(self):
        given = GivenArguments(
            schema={
                "type": "object",
                "properties": {"a": {"pattern": "^x+$"}, "b": {}},
                "patternProperties": {"^n_": {"type": "integer"}},
                "additionalProperties": False,
            },
            description="",
        )
        assert given.validate({"a": "xx", "b": "any", "n_1": 1}) == {"a": "xx", "b": "any", "n_1": 1}
        for arguments, message in (
            ({"a": "y"}, r"argument a: 'y' does not match '\^x\+\$'"),
            ({"n_1": "1"}, "argument n_1: '1' is not of type 'integer'"),
            ({"c": 1}, "there is no argument 'c'; known: a, b"),
        ):
            with pytest.raises(ArgumentError, match=message):
                given.validate(arguments)

    def test_additional_arguments_may_have_a_schema(self):
        given = GivenArguments(schema={"additionalProperties": {"type": "integer"}}, description="")
        assert given.validate({"a": 1}) == {"a": 1}
        with pytest.raises(ArgumentError, match="argument a: 'x' is not of type 'integer'"):
            given.validate({"a": "x"})

    def test_a_schema_that_asks_for_a_days_work_is_refused(self):
        levels = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}
        given = GivenArguments(schema={"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": levels}, description="")
        with pytest.raises(ArgumentError, match="too much work"):
            given.validate({"x": 1})
        unique = GivenArguments(schema={"properties": {"x": {"uniqueItems": True}}}, description="")
        with pytest.raises(ArgumentError, match="too much work"):
            unique.validate({"x": [{"n": n} for n in range(5000)]})
        assert given.validate({"y": 1}) == {"y": 1}

    def test_patterns_have_their_time_together(self, monkeypatch):
        now, asked = 0.0, []

        def search(pattern: str, text: str, *, timeout: float) -> bool:
            nonlocal now
            asked.append(pattern)
            now += min(timeout, 0.2)
            if timeout < 0.2:
                raise TimeoutError
            return True

        monkeypatch.setattr(given_schema, "regex", SimpleNamespace(search=search))
        monkeypatch.setattr(given_schema, "time", SimpleNamespace(monotonic=lambda: now))
        slow = {f"p{n}": {"pattern": f"^{n}$"} for n in range(10)}
        given = GivenArguments(schema={"properties": slow}, description="")
        with pytest.raises(ArgumentError, match="takes too long"):
            given.validate(dict.fromkeys(slow, "text"))
        assert (len(asked), now) == (3, pytest.approx(0.5))

    def test_what_stands_in_every_prompt_is_bounded(self):
        with pytest.raises(ConfigError, match="the limit is 65536"):
            GivenArguments(schema={}, description="x" * 70_000)
        with pytest.raises(ConfigError, match="the limit is 65536"):
            GivenArguments(schema={"description": "x" * 70_000}, description="")

    @pytest.mark.parametrize(
        ("schema", "value", "message"),
        [
            ({"pattern": "^(a|aa)+$"}, "a" * 100 + "!", "takes too long"),
            ({"multipleOf": 0.1}, 10**400, "too large"),
            ({"$ref": "#/$defs/node"}, functools.reduce(lambda inner, _: {"n": inner}, range(500), {}), "too deeply"),
        ],
    )
    def test_what_is_made_to_break_the_check_is_refused(self, schema, value, message):
        node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/node"}}}
        given = GivenArguments(schema={"properties": {"x": schema}, "$defs": {"node": node}}, description="")
        with pytest.raises(ArgumentError, match=message):
            given.validate({"x": value})


async def test_an_image_that_cannot_be_read_is_named():
    content = [mcp_types.ImageContent(data="no base64!", mime_type="image/png")]
    assert _read(mcp_types.CallToolResult(content=content)).observation == "[image that cannot be read]"


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({}, b"x" * 11, "more than 10 bytes"),
        ({"Content-Encoding": "gzip"}, gzip.compress(b"x"), "compressed, which was not asked for"),
        ({"Content-Encoding": "identity"}, b"x" * 10, None),
    ],
)
async def test_bodies_over_http_are_bounded(headers, body, message):
    asked = []

    def answer(request):
        asked.append(request.headers["accept-encoding"])
        return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(body))

    transport = BoundedTransport(httpx2.MockTransport(answer), max_bytes=10)
    async with httpx2.AsyncClient(transport=transport, headers={"Accept-Encoding": "gzip"}) as client:
        if message is None:
            assert (await client.get("http://x/")).content == body
        else:
            with pytest.raises(httpx2.StreamError, match=message):
                await client.get("http://x/")
    assert asked == ["identity"]
