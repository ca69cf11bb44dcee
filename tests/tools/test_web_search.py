"""`web_search` over a corpus, over endpoints of two kinds, and over a provider of one's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from agentfly_lib.errors import ConfigError, DataError, InfrastructureError
from agentfly_lib.tools import Tool, ToolCall, ToolContext, execute_calls, get_tool
from agentfly_lib.tools.corpus import load_corpus
from agentfly_lib.tools.http_search import EndpointProvider, RateLimit, SearxngSettings, SerperSettings
from agentfly_lib.tools.search import SearchHit
from agentfly_lib.tools.web_search import make_web_search, web_search
from agentfly_lib.types import Problem

ROWS = [
    {"id": "1", "title": "Cat", "text": "A small animal that purrs."},
    {"url": "https://e.org/dog", "title": "Dog", "contents": "An animal that barks."},
    {"text": "Nothing of the kind."},
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "pages.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    return path


async def search(tool: Tool, query: str) -> str:
    context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))
    calls = [ToolCall(id="0", name="web_search", arguments={"query": query})]
    (result,) = await execute_calls(calls, {"web_search": tool}, context, default_timeout=30, max_chars=100)
    return result.observation


def over(corpus, **settings) -> Tool:
    return web_search.with_settings({"provider": {"type": "corpus", "path": str(corpus)}, **settings})


class TestCorpus:
    async def test_hits_are_shown_best_first(self, corpus):
        assert await search(over(corpus), "animal that barks") == (
            "[1] Dog <https://e.org/dog>\nAn animal that barks.\n\n[2] Cat <1>\nA small animal that purrs."
        )

    async def test_titles_are_searched(self, corpus):
        assert (await search(over(corpus), "cat")).startswith("[1] Cat")

    async def test_nothing_found(self, corpus):
        assert await search(over(corpus), "elephant") == "(nothing was found)"

    async def test_how_much_is_shown(self, corpus):
        shown = await search(over(corpus, results=1, max_hit_chars=7), "animal")
        assert shown == "[1] Dog <https://e.org/dog>\nAn anim\n[14 more characters were cut]"

    def test_it_is_indexed_once(self, corpus):
        assert load_corpus(corpus) is load_corpus(corpus)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is empty"),
            ('{"text": "a"}\nno json', "line 2: this is not JSON"),
            ('{"title": "a"}', "line 1: a row needs a text"),
            ("[1]", "line 1: a row needs a text"),
            ('{"text": 5}', "line 1: a row needs a text"),
        ],
    )
    def test_files_that_cannot_be_used(self, tmp_path, text, message):
        (tmp_path / "c.jsonl").write_text(text)
        with pytest.raises(DataError, match=message):
            load_corpus(tmp_path / "c.jsonl")

    def test_bytes_that_are_no_text(self, tmp_path):
        (tmp_path / "c.jsonl").write_bytes(b"\xff\xfe")
        with pytest.raises(DataError, match="not UTF-8"):
            load_corpus(tmp_path / "c.jsonl")


class TestSettings:
    def test_without_any_it_is_refused_before_a_rollout(self):
        assert get_tool("web_search") is web_search
        with pytest.raises(ConfigError, match=r"set agent.tool_settings.web_search.provider"):
            web_search.check()

    def test_a_corpus_that_is_not_there(self, tmp_path):
        with pytest.raises(ConfigError, match="there is no corpus"):
            over(tmp_path / "none.jsonl").check()

    def test_a_key_that_is_not_set(self, monkeypatch):
        monkeypatch.delenv("SERPER_API_KEY", raising=False)
        with pytest.raises(ConfigError, match="SERPER_API_KEY"):
            web_search.with_settings({"provider": {"type": "serper"}}).check()

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"provder": {}}, "unknown key tool_settings.web_search.provder: did you mean provider"),
            ({"provider": {"type": "bing"}}, "tool_settings.web_search.provider"),
            ({"provider": {"type": "searxng", "url": "x"}}, "provider.searxng.url = 'x'"),
            ({"results": 0}, "tool_settings.web_search.results = 0"),
        ],
    )
    def test_wrong_ones_are_named(self, values, message):
        with pytest.raises(ConfigError, match=message):
            web_search.with_settings(values)

    async def test_a_provider_of_ones_own(self):
        class Mine:
            async def search(self, query: str, count: int) -> list[SearchHit]:
                return [SearchHit(title=query.upper(), url="", text="x")][:count]

        tool = make_web_search(Mine())
        tool.check()
        assert await search(tool, "cat") == "[1] CAT\nx"


class Endpoint:
    """A search engine on loopback that answers from a list, the last answer again and again."""

    def __init__(self, answers: list[tuple[int, str, str]]) -> None:
        self.answers = answers
        self.keeps = False
        self.connections: set[tuple[str, int]] = set()
        self.asked: list[tuple[str, dict[str, list[str]], str, str]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.connections.add(writer.get_extra_info("peername"))
        method, path, _ = head.split("\r\n", 1)[0].split()
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length")), 0)
        body = (await reader.readexactly(length)).decode()
        self.asked.append((method, parse_qs(urlsplit(path).query), head, body))
        status, headers, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        data = text.encode()
        if not self.keeps:
            headers += "Connection: close\r\n"
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data)
        await writer.drain()
        if self.keeps:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await self.serve(reader, writer)
        writer.close()


@pytest.fixture
async def engine() -> AsyncIterator[Callable[..., tuple[Endpoint, str]]]:
    servers = []

    async def start(*answers: tuple[int, str, str]) -> tuple[Endpoint, str]:
        endpoint = Endpoint(list(answers))
        servers.append(await asyncio.start_server(endpoint.serve, "127.0.0.1", 0))
        return endpoint, f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}/search"

    yield start
    for server in servers:
        server.close()


FAST = {"backoff_seconds": 0.0, "requests_per_second": 10_000.0}
SEARXNG = json.dumps({"results": [{"title": "A", "url": "u", "content": "c"}, {"title": "B", "url": "v"}]})
SERPER = json.dumps({"organic": [{"title": "A", "link": "u", "snippet": "c"}]})


class TestEndpoints:
    async def test_searxng(self, engine):
        endpoint, url = await engine((200, "", SEARXNG))
        hits = await EndpointProvider(SearxngSettings(url=url, **FAST)).search("cats & dogs", 1)
        assert hits == [SearchHit(title="A", url="u", text="c")]
        ((method, query, _, _),) = endpoint.asked
        assert (method, query) == ("GET", {"q": ["cats & dogs"], "format": ["json"]})

    async def test_serper(self, engine, monkeypatch):
        monkeypatch.setenv("MY_KEY", "secret")
        endpoint, url = await engine((200, "", SERPER))
        hits = await EndpointProvider(SerperSettings(url=url, api_key_variable="MY_KEY", **FAST)).search("cats", 3)
        assert hits == [SearchHit(title="A", url="u", text="c")]
        ((method, _, head, body),) = endpoint.asked
        assert (method, json.loads(body)) == ("POST", {"q": "cats", "num": 3})
        assert "x-api-key: secret" in head.lower()

    async def test_equal_queries_are_asked_once(self, engine):
        endpoint, url = await engine((200, "", SEARXNG))
        provider = EndpointProvider(SearxngSettings(url=url, cached_queries=1, **FAST))
        for query in ("a", "a", "b", "a"):
            await provider.search(query, 2)
        assert [query["q"] for _, query, _, _ in endpoint.asked] == [["a"], ["b"], ["a"]]

    async def test_a_connection_is_kept_until_the_loop_ends(self, engine):
        endpoint, url = await engine((200, "", SEARXNG))
        endpoint.keeps = True
        provider = EndpointProvider(SearxngSettings(url=url, **FAST))
        for query in "abc":
            await provider.search(query, 1)
        assert (len(endpoint.asked), len(endpoint.connections)) == (3, 1)
        await asyncio.to_thread(asyncio.run, provider.search("d", 1))  # in another loop, which has ended now
        assert (len(endpoint.asked), len(endpoint.connections)) == (4, 2)
        assert list(provider._clients) == [asyncio.get_running_loop()]

    async def test_a_busy_one_is_asked_again(self, engine):
        endpoint, url = await engine((503, "", ""), (429, "Retry-After: 0\r\n", ""), (200, "", SEARXNG))
        assert await EndpointProvider(SearxngSettings(url=url, retries=2, **FAST)).search("a", 5)
        assert len(endpoint.asked) == 3

    @pytest.mark.parametrize(
        ("answer", "tries", "message"),
        [
            ((503, "", ""), 2, "status 503"),
            ((403, "", ""), 1, "refuses requests with status 403"),
            ((200, "", "<html>"), 1, "gave an answer that SearxngSettings cannot read"),
            ((200, "", "[]"), 1, "gave an answer that"),
            ((200, "", '{"results": [{"title": "x"}]}'), 1, "gave an answer that"),
            ((200, "", "[" * 100_000), 1, "gave an answer that"),
            ((200, "Content-Encoding: gzip\r\n", SEARXNG + " " * (1 << 22)), 1, "answers with more than 4194304 bytes"),
        ],
    )
    async def test_no_answer_is_an_outage_and_no_observation(self, engine, answer, tries, message):
        endpoint, url = await engine(answer)
        tool = web_search.with_settings({"provider": {"type": "searxng", "url": url, "retries": 1, **FAST}})
        with pytest.raises(InfrastructureError, match=message):
            await search(tool, "a")
        assert len(endpoint.asked) == tries

    async def test_one_that_is_away(self):
        settings = SearxngSettings(url="http://127.0.0.1:9/search", retries=1, **FAST)
        with pytest.raises(InfrastructureError, match=r"127.0.0.1:9/search gives no answer: ConnectError"):
            await EndpointProvider(settings).search("a", 5)


def test_the_rate_is_even_over_everyone_who_asks():
    limit = RateLimit(per_second=4.0)
    assert [limit.delay(now) for now in (10.0, 10.0, 10.1, 20.0, 20.0)] == pytest.approx([0.0, 0.25, 0.4, 0.0, 0.25])
