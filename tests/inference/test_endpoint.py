"""One endpoint against a server that breaks in every way a server does."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from agentfly_lib.errors import ConfigError
from agentfly_lib.inference.endpoint import Endpoint, EndpointRefused, EndpointUnavailable, _written


def endpoint(url, **settings) -> Endpoint:
    return Endpoint(base_url=url, **({"backoff_seconds": 0.001, "retries": 3} | settings))


def in_turn(*answers):
    """The k-th request gets the k-th answer, later ones the last."""
    left = list(answers)
    return lambda path, body: left.pop(0) if len(left) > 1 else left[0]


async def test_what_is_posted_and_answered(fake_server, monkeypatch):
    server = await fake_server(lambda path, body: {"path": path, "got": body})
    monkeypatch.setenv("A_KEY", "secret")
    answer = await endpoint(server.url + "/", api_key_env="A_KEY").post("a/b", {"x": "é"}, seconds=10)
    assert answer == {"path": "a/b", "got": {"x": "é"}}
    assert server.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("value", [float("inf"), "\ud800"])
async def test_json_that_not_everybody_writes_is_read(fake_server, value):
    server = await fake_server(lambda path, body: {"got": value})
    assert await endpoint(server.url).post("x", {}, seconds=10) == {"got": value}


@pytest.mark.parametrize("value", [float("-inf"), 2**70, "\ud800", {1: 2}])
async def test_json_that_not_everybody_reads_is_written(fake_server, value):
    server = await fake_server(lambda path, body: {})
    await endpoint(server.url).post("x", {"value": value}, seconds=10)
    assert server.bodies == [json.loads(json.dumps({"value": value}))]


async def test_no_key_is_sent_where_there_is_none(fake_server):
    server = await fake_server(lambda path, body: {})
    await endpoint(server.url, api_key_env="NO_SUCH_KEY").post("x", {}, seconds=10)
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize("fault", [500, 502, 503, 429, 408, b"not json", b"[1]", b"", b"{"])
async def test_what_may_pass_is_tried_again(fake_server, fault):
    server = await fake_server(in_turn(fault, fault, {"ok": 1}))
    assert await endpoint(server.url).post("x", {}, seconds=10) == {"ok": 1}
    assert len(server.requests) == 3


async def test_a_connection_that_ends_in_the_middle_is_tried_again(fake_server):
    server = await fake_server(lambda path, body: server.HANG_UP if len(server.requests) < 3 else {"ok": 1})
    assert await endpoint(server.url).post("x", {}, seconds=10) == {"ok": 1}


async def test_after_the_last_try_the_error_says_what_was_answered(fake_server):
    server = await fake_server(lambda path, body: 503)
    with pytest.raises(EndpointUnavailable, match=r"/v1/x answered 503: the fake server says no \(try 4 of 4\)"):
        await endpoint(server.url).post("x", {}, seconds=10)
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 301])
async def test_a_refusal_is_not_tried_again(fake_server, status):
    server = await fake_server(lambda path, body: status)
    with pytest.raises(EndpointRefused, match=f"answered {status}: the fake server says no") as caught:
        await endpoint(server.url).post("x", {}, seconds=10)
    assert caught.value.status == status
    assert len(server.requests) == 1


async def test_a_server_that_is_not_there(fake_server):
    server = await fake_server(lambda path, body: {})
    await server.stop()
    with pytest.raises(EndpointUnavailable, match=r"cannot be reached: .*\(try 2 of 2\)"):
        await endpoint(server.url, retries=1).post("x", {}, seconds=10)
    await server.start(server.port)
    assert await endpoint(server.url).post("x", {}, seconds=10) == {}


async def test_the_limit_holds_for_all_tries_together(fake_server):
    server = await fake_server(lambda path, body: asyncio.Event().wait())
    with pytest.raises(EndpointUnavailable, match=r"had no answer within 0\.05 s"):
        await endpoint(server.url).post("x", {}, seconds=0.05)
    server.answer = lambda path, body: (429, {"Retry-After": "20"}, "slow down")
    with pytest.raises(EndpointUnavailable, match=r"within 0\.05 s; before that: .*429: slow down"):
        await endpoint(server.url).post("x", {}, seconds=0.05)


def test_the_wait_is_what_the_server_asks_for_or_doubles():
    patient = endpoint("http://h", backoff_seconds=1.0)
    assert patient._wait(0, 7.0) == 7.0
    assert patient._wait(0, 1e9) == 30.0
    for attempt in range(4):
        assert 0.5 * 2**attempt <= patient._wait(attempt, None) <= 2**attempt
    assert patient._wait(50, None) <= 30.0


async def test_cancelling_closes_the_connection(fake_server):
    asked = asyncio.Event()

    async def hang(path, body):
        asked.set()
        await asyncio.Event().wait()

    server = await fake_server(hang)
    task = asyncio.create_task(endpoint(server.url).post("x", {}, seconds=30))
    async with asyncio.timeout(10):
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.hung_up.wait()


async def test_no_more_connections_than_allowed(fake_server):
    full = asyncio.Event()

    async def wait(path, body):
        if server.in_flight == 3:
            full.set()
        await full.wait()
        return {}

    server = await fake_server(wait)
    limited = endpoint(server.url, max_connections=3)
    async with asyncio.timeout(20):
        await asyncio.gather(*(limited.post("x", {}, seconds=20) for _ in range(12)))
    assert server.most_in_flight == 3


async def test_an_endless_answer_is_cut_off(fake_server, monkeypatch):
    monkeypatch.setattr("agentfly_lib.inference.endpoint.MAX_ANSWER_BYTES", 1000)
    server = await fake_server(lambda path, body: b"x" * 100_000)
    with pytest.raises(EndpointRefused, match="more than 1000 bytes"):
        await endpoint(server.url).post("x", {}, seconds=10)


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://h", "http://"])
def test_an_address_that_is_none(url):
    with pytest.raises(ConfigError, match="base_url"):
        Endpoint(base_url=url)


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        data = json.dumps({"path": self.path}).encode()
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def test_one_event_loop_after_another_and_nothing_is_left_open(caplog):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        asked = endpoint(f"http://127.0.0.1:{server.server_port}")
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            for _ in range(3):
                assert asyncio.run(asked.post("x", {}, seconds=10)) == {"path": "/x"}
            gc.collect()
        server.shutdown()
    assert asked._sessions == {}
    assert "Unclosed" not in caplog.text


def test_a_body_in_flight_takes_as_much_memory_as_it_is_long() -> None:
    tracemalloc.start()
    try:
        bodies = [_written({"prompt": list(range(1000))}) for _ in range(20)]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1.5 * sum(map(len, bodies))
