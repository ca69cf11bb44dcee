"""The client of OpenEnv, against a server with its messages, and against openenv-core's own where that is installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from aiohttp import WSMsgType, web

from agentfly_lib.envs.environment import Environment
from agentfly_lib.envs.openenv import KIND, OpenEnv, OpenEnvSettings
from agentfly_lib.envs.session import EnvironmentSession
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import ConfigError, EnvironmentFailure
from agentfly_lib.tools.environment import environment_tools

SCHEMA = {
    "action": {
        "title": "Say",
        "type": "object",
        "properties": {
            "metadata": {"type": "object"},
            "text": {"type": "string"},
            "times": {"type": "integer", "default": 1},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
}
CORE = """
    import sys
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Say(Action):
        text: str
        times: int = 1

    class Said(Observation):
        echoed: str

    class Echo(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        count = 0

        def reset(self, seed=None, episode_id=None, **more):
            self.count = 0
            return Said(echoed=f"seed {seed} {sorted(more)}")

        def step(self, action, timeout_s=None, **more):
            if action.text == "boom":
                raise RuntimeError("boom")
            self.count += 1
            return Said(echoed=action.text * action.times, reward=0.5, done=self.count == 2)

        @property
        def state(self):
            return State(step_count=self.count)

    app = create_app(Echo, Say, Said, env_name="echo", max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


async def _socket(request: web.Request) -> web.WebSocketResponse:
    """The same environment as `CORE`, by hand."""
    answers = web.WebSocketResponse()
    await answers.prepare(request)
    count = 0
    async for message in answers:
        assert message.type is WSMsgType.TEXT
        asked = json.loads(message.data)
        data = asked.get("data", {})
        observation, reward, done = {}, None, False
        if asked["type"] == "close":
            break
        if asked["type"] == "reset":
            count = 0
            observation = {"echoed": f"seed {data.pop('seed')} {sorted(data)}"}
        elif data.get("text") == "die":
            await answers.close()
            break
        elif data.get("text") == "silence":
            continue
        elif data.get("text") == "odd":
            await answers.send_json({"type": "state", "data": {}})
            continue
        elif "text" not in data or data["text"] == "boom":
            code = "EXECUTION_ERROR" if "text" in data else "VALIDATION_ERROR"
            await answers.send_json({"type": "error", "data": {"message": data.get("text", "Invalid"), "code": code}})
            continue
        else:
            count += 1
            observation, reward, done = {"echoed": data["text"] * data.get("times", 1)}, 0.5, count == 2
        await answers.send_json(
            {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}
        )
    return answers


@pytest.fixture(scope="module")
def by_hand() -> Iterator[str]:
    loop, started, address = asyncio.new_event_loop(), threading.Event(), []

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/ws", _socket)
        app.router.add_get("/schema", lambda _: _json(SCHEMA))
        app.router.add_get("/other/schema", lambda _: _json({"paths": {}}))
        app.router.add_get("/list/schema", lambda _: _json([]))
        app.router.add_get("/odd/schema", lambda _: _json({"action": {"properties": 7}}))
        app.router.add_get("/deep/schema", lambda _: _text("[" * 100_000))
        app.router.add_get("/large/schema", lambda _: _text(" " * (5 << 20)))
        app.router.add_get("/slow/schema", _slow)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        return runner

    async def _json(value: object) -> web.Response:
        return web.json_response(value)

    async def _text(text: str) -> web.Response:
        return web.Response(text=text)

    async def _slow(request: web.Request) -> web.StreamResponse:
        """Piece by piece, without end, and never so long apart that a socket gives up."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.write(b" ")
                await asyncio.sleep(0.01)
        return answer

    def serve() -> None:
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(30)
    yield address[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


@pytest.fixture(scope="module")
def by_core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """openenv-core's server, with all that it needs."""
    for package in ("openenv", "fastmcp", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the server of openenv-core cannot run here: {package} is not installed")
    program = tmp_path_factory.mktemp("openenv") / "server.py"
    program.write_text(textwrap.dedent(CORE))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(program), str(port)])
    try:
        deadline = time.monotonic() + 200
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False)
                break
            except httpx.HTTPError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=["by_hand", "by_core"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


def test_an_episode(url: str) -> None:
    game = OpenEnv(url=url, observation="echoed", reset={"level": 3})
    assert isinstance(game, Environment)
    assert game.reset({"seed": 7, "reset": {"other": 1}}) == "seed 7 ['level', 'other']"
    first, second = (game.step('{"text": "ab", "times": 2}') for _ in range(2))
    assert (first.observation, first.reward, first.done) == ("abab", 0.5, False)
    assert second.done
    assert game.reset({"seed": 8}) == "seed 8 ['level']"
    assert not game.step('{"text": "a"}').done
    game.close()
    game.close()


def test_what_the_server_refuses_is_told(url: str) -> None:
    game = OpenEnv(url=url)
    assert game.reset({"seed": 1}) == "echoed: seed 1 []"
    assert "EXECUTION_ERROR" in game.step('{"text": "boom"}').error
    assert "VALIDATION_ERROR" in game.step('{"nope": 1}').error
    for written in ("", "[]", "{", "7", "\x00", "[" * 100_000):
        assert game.step(written).error.startswith("An action is a JSON object")
    assert game.step('{"text": "still here"}').observation == "echoed: still here"
    game.close()


def test_its_schema_is_the_tools(url: str) -> None:
    (tool,) = environment_tools(environment_spec("openenv", {"url": url}))
    assert tool.name == "act"
    assert list(tool.parameters["properties"]) == ["text", "times"]
    assert tool.parameters["required"] == ["text"]
    KIND.check(OpenEnvSettings(url=url))


async def test_sessions_are_apart_and_a_lost_one_is_a_failure(by_hand: str) -> None:
    spec = environment_spec("openenv", {"url": by_hand, "observation": "echoed"})
    async with spec.open() as one, spec.open() as other:
        first, second = (EnvironmentSession(KIND, each, {"seed": 0}) for each in (one, other))
        assert (await first.step('{"text": "a"}')).total == 0.5
        assert not (await second.step('{"text": "b"}')).step.done
        assert (await first.step('{"text": "a"}')).step.done
        with pytest.raises(EnvironmentFailure, match="ConnectionClosed"):
            await second.step('{"text": "die"}')
        assert not await other.healthy()
    async with spec.open() as one:
        with pytest.raises(EnvironmentFailure, match="'state' is not an answer to 'step'"):
            await EnvironmentSession(KIND, one, {"seed": 0}).step('{"text": "odd"}')
    async with environment_spec("openenv", {"url": by_hand, "observation": "text"}).open() as one:
        with pytest.raises(EnvironmentFailure, match="observations have no 'text', they have: echoed"):
            await EnvironmentSession(KIND, one, {"seed": 0}).step('{"text": "a"}')


def test_the_settings_say_how_long_an_answer_may_take(by_hand: str) -> None:
    spec = environment_spec("openenv", {"url": by_hand, "seconds": 3600.0})
    assert min(spec.pool.start_seconds, spec.pool.step_seconds, KIND.step_limit(spec.settings)) > 3600
    game = OpenEnv(url=by_hand)
    game.reset({"seed": 0})
    game._settings = OpenEnvSettings(url=by_hand, seconds=0.1)
    with pytest.raises(TimeoutError, match=r"no answer to 'step' within 0.1 s \(settings.seconds\)"):
        game.step('{"text": "silence"}')
    game.close()


def test_what_is_missing_is_said(by_hand: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"no OpenEnv server answers at .*/schema: ConnectError"):
            KIND.check(OpenEnvSettings(url=nobody))
    with pytest.raises(ConfigError, match="describes no action"):
        KIND.check(OpenEnvSettings(url=f"{by_hand}/other"))
    for path in ("list", "odd"):
        with pytest.raises(ConfigError, match="describes no action"):
            KIND.check(OpenEnvSettings(url=f"{by_hand}/{path}"))
    for path, said in (("deep", "RecursionError"), ("large", "more than 4194304 bytes"), ("slow", "within 1 s")):
        with pytest.raises(ConfigError, match=f"no OpenEnv server answers at .*/{path}/schema: .*{said}"):
            KIND.check(OpenEnvSettings(url=f"{by_hand}/{path}", seconds=1.0 if path == "slow" else 60.0))
    for wrong in ("127.0.0.1:8000", "ws://x", "http://user:secret@x"):
        with pytest.raises(ConfigError, match=r"settings\.url"):
            environment_spec("openenv", {"url": wrong})


def test_problems_are_seeds_that_splits_do_not_share() -> None:
    settings = OpenEnvSettings(url="http://x", seed=5)
    rows = [[row["seed"] for row in itertools.islice(KIND.problems(settings, split), 2)] for split in ("train", "eval")]
    assert rows == [[5, 6], [5 + 2**30, 6 + 2**30]]
