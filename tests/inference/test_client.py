"""A client outlives its engines: what one owes is asked of another and counted once; without any left it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference.generate import Generation, GenerationRequest
from agentfly_lib.refs import EngineRef
from benchmarks import virtual_time

pytestmark = pytest.mark.stack

SAMPLED = [7, 8, 9]


def request(seed: int = 0) -> GenerationRequest:
    return GenerationRequest(request_id=f"r{seed}", token_ids=[seed] * 40, max_tokens=3, seed=seed)


def generation(token_ids=SAMPLED) -> tuple[str, Any]:
    """What an engine packs an answer into; read from the server's own function, whose form is its affair."""
    from agentfly_lib.inference.server import _pack_generation
    from agentfly_lib.types import FinishReason

    ids = list(token_ids)
    made = Generation(token_ids=ids, logprobs=[-1.0] * len(ids), finish=FinishReason.STOP, policy_version=0)
    return "generation", _pack_generation(made)


class Method:
    """`actor.method.remote(...)`."""

    def __init__(self, work: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = work


class FakeEngine:
    """An engine's actor as a client sees it. It answers what it is told to, when it is told to."""

    def __init__(self, answer: Callable[[int], list[Any]] = lambda key: []) -> None:
        self.asked: dict[int, Any] = {}
        self.given_up: list[int] = []
        self.answers = answer
        self.silent = False
        self.error: Exception | None = None
        self._replies: list[Any] = []
        self._stirred = asyncio.Condition()
        self.submit, self.collect = Method(self._submit), Method(self._collect)

    async def _submit(self, client, requests, given_up):
        await self._alive()
        for key, packed, _ in requests:
            self.asked[key] = packed
            self._replies += [(key, kind, value) for kind, value in self.answers(key)]
        self.given_up += given_up
        await self.stir()

    async def _collect(self, client, seconds):
        try:
            async with asyncio.timeout(seconds), self._stirred:
                await self._stirred.wait_for(lambda: self._replies or self.error or self.silent)
        except TimeoutError:
            pass
        await self._alive()
        replies, self._replies = self._replies, []
        return replies

    async def _alive(self):
        while self.silent:
            await asyncio.sleep(0.5)
        if self.error:
            raise self.error

    async def stir(self):
        async with self._stirred:
            self._stirred.notify_all()

    async def reply(self, key, kind, value):
        self._replies.append((key, kind, value))
        await self.stir()

    async def die(self):
        from ray.exceptions import RayActorError

        self.error = RayActorError()
        await self.stir()


World = Callable[..., Any]


@pytest.fixture
def world(monkeypatch) -> World:
    """`world(engines, scene)`: runs `scene(client, engines)` in virtual time."""
    pytest.importorskip("ray")
    from agentfly_lib.inference import client as module

    def play(make: Callable[[], dict[str, FakeEngine]], scene, **options):
        async def scenery():
            engines = make()

            def find(name: str, namespace: str) -> FakeEngine:
                if name not in engines:
                    raise EngineError(f"there is no engine {name!r}")
                return engines[name]

            monkeypatch.setattr(module, "find_engine", find)
            ref = EngineRef(names=("a", "b"), namespace="n", policy_version=0)
            async with asyncio.timeout(600):
                await scene(module.RayGenerate(ref, **options), engines)
            await asyncio.sleep(4)  # what a poll still waits for
            assert len(asyncio.all_tasks()) == 1, "something runs on although nobody waits"

        virtual_time.run(scenery())

    return play


def answering() -> FakeEngine:
    return FakeEngine(lambda key: [generation()])


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_requests_are_spread_and_each_is_answered_once(world):
    async def scene(client, engines):
        answers = await asyncio.gather(*(client.generate(request(seed)) for seed in range(40)))
        assert [answer.token_ids for answer in answers] == [SAMPLED] * 40
        asked = [set(engine.asked) for engine in engines.values()]
        assert not asked[0] & asked[1]
        assert sorted(asked[0] | asked[1]) == list(range(40))
        assert max(map(len, asked)) <= 25
        assert (client.losses, client.resent) == ([], 0)

    world(lambda: {"a": answering(), "b": answering()}, scene)


def test_what_a_dead_engine_owed_is_asked_of_another_and_it_gets_nothing_more(world):
    told = []

    async def scene(client, engines):
        loop = asyncio.get_running_loop()
        waiting = [asyncio.ensure_future(client.generate(request(seed))) for seed in range(20)]
        await until(lambda: len(engines["a"].asked) + len(engines["b"].asked) == 20)
        owed = len(engines["a"].asked)
        assert owed > 0
        died = loop.time()
        await engines["a"].die()
        await until(lambda: client.losses)
        assert loop.time() - died < 1
        await until(lambda: len(engines["b"].asked) == 20)
        assert client.resent == owed
        for key in range(20):
            await engines["b"].reply(key, *generation())
        assert len(await asyncio.gather(*waiting)) == 20
        assert client.names == ("b",)
        more = asyncio.ensure_future(client.generate(request(99)))
        await until(lambda: 20 in engines["b"].asked)
        await engines["b"].reply(20, *generation())
        await more
        assert [loss.name for loss in told] == ["a"]
        assert "is gone" in told[0].reason

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene, on_loss=told.append)


def test_a_silent_engine_is_noticed_within_ten_seconds_and_the_first_answer_counts(world):
    async def scene(client, engines):
        loop = asyncio.get_running_loop()
        waiting = [asyncio.ensure_future(client.generate(request(seed))) for seed in range(10)]
        await until(lambda: len(engines["a"].asked) + len(engines["b"].asked) == 10)
        owed = list(engines["a"].asked)
        engines["a"].silent, since = True, loop.time()
        await until(lambda: client.losses)
        assert loop.time() - since < 10
        await until(lambda: len(engines["b"].asked) == 10)
        for key in range(10):
            await engines["b"].reply(key, *generation([1]))
        assert {tuple(answer.token_ids) for answer in await asyncio.gather(*waiting)} == {(1,)}

        for key in owed:  # the stalled machine goes on, and answers what nobody waits for any more
            await engines["a"].reply(key, *generation([2]))
        engines["a"].silent = False
        await until(lambda: set(engines["a"].given_up) == set(owed))
        assert client.resent == len(owed)

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_an_engine_that_was_silent_and_answers_gets_requests_again(world):
    async def scene(client, engines):
        waiting = [asyncio.ensure_future(client.generate(request(seed))) for seed in range(10)]
        await until(lambda: len(engines["a"].asked) + len(engines["b"].asked) == 10)
        engines["a"].silent = True
        await until(lambda: client.names == ("b",))
        engines["a"].silent = False
        await until(lambda: set(client.names) == {"a", "b"})
        for engine in engines.values():
            for key in engine.asked:
                await engine.reply(key, *generation())
        await asyncio.gather(*waiting)

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_without_any_engine_left_all_fail_at_once(world):
    async def scene(client, engines):
        waiting = [asyncio.ensure_future(client.generate(request(seed))) for seed in range(6)]
        await until(lambda: len(engines["a"].asked) + len(engines["b"].asked) == 6)
        await engines["a"].die()
        await until(lambda: client.losses)
        await engines["b"].die()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {EngineError}
        with pytest.raises(EngineError, match="is gone"):
            await client.generate(request())

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_all_engines_silent_for_long_are_gone(world):
    async def scene(client, engines):
        for engine in engines.values():
            engine.silent = True
        since = asyncio.get_running_loop().time()
        with pytest.raises(EngineError, match="no answer within 40 s"):
            await client.generate(request())
        assert asyncio.get_running_loop().time() - since < 120
        for engine in engines.values():
            engine.silent = False

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_an_engine_that_says_it_is_broken_is_left_alone_until_it_joins_again(world):
    async def scene(client, engines):
        engines["a"].answers = lambda key: [("engine", "may not be used")]
        await asyncio.gather(*(client.generate(request(seed)) for seed in range(10)))
        assert client.names == ("b",)
        assert set(engines["b"].asked) == set(range(10))
        engines["a"].answers = lambda key: [generation()]
        client.join("a")
        await asyncio.gather(*(client.generate(request(seed)) for seed in range(10, 20)))
        assert any(key >= 10 for key in engines["a"].asked)

        for engine in engines.values():
            engine.answers = lambda key: [("engine", "the machine caught fire")]
        with pytest.raises(EngineError, match="caught fire"):
            await client.generate(request())

    world(lambda: {"a": answering(), "b": answering()}, scene)


def test_a_request_that_breaks_is_its_own_failure_and_not_its_engines(world):
    async def scene(client, engines):
        for engine in engines.values():
            engine.answers = lambda key: [("program", "KeyError: 'token'")] if key == 0 else [generation()]
        with pytest.raises(InfrastructureError, match=r"failed at this request: KeyError: 'token'") as caught:
            await client.generate(request())
        assert caught.value.where == "generate"
        assert client.names == ("a", "b")
        assert (client.losses, client.resent) == ([], 0)
        assert await client.generate(request(1))

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_an_engine_that_joined_again_is_asked_for_what_it_had_failed_at(world):
    async def scene(client, engines):
        waiting = asyncio.ensure_future(client.generate(request()))
        await until(lambda: engines["a"].asked or engines["b"].asked)
        first, second = ("a", "b") if engines["a"].asked else ("b", "a")
        await engines[first].reply(0, "engine", "may not be used")
        await until(lambda: engines[second].asked)
        engines[first].answers = lambda key: [generation()]
        client.join(first)
        await engines[second].die()
        assert (await waiting).token_ids == SAMPLED

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_a_replaced_engine_joins_under_its_name(world):
    async def scene(client, engines):
        waiting = [asyncio.ensure_future(client.generate(request(seed))) for seed in range(10)]
        await until(lambda: len(engines["a"].asked) + len(engines["b"].asked) == 10)
        await engines["a"].die()
        await until(lambda: len(engines["b"].asked) == 10)
        engines["a"] = answering()
        client.join("a")
        assert set(client.names) == {"a", "b"}
        await asyncio.gather(*(client.generate(request(seed)) for seed in range(100, 104)))
        assert engines["a"].asked, "the one with nothing in flight was chosen"
        for key in list(engines["b"].asked):
            await engines["b"].reply(key, *generation())
        await asyncio.gather(*waiting)

        engines["b"] = answering()  # replaced while nothing was in flight, so that nobody noticed
        client.join("b")
        await asyncio.gather(*(client.generate(request(seed)) for seed in range(200, 220)))
        assert engines["b"].asked

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


@pytest.mark.parametrize(("second", "fails"), [([7, 8, 9], False), ([7, 5, 9], True)])
def test_tokens_that_were_told_are_not_told_twice_nor_contradicted(world, second, fails):
    async def scene(client, engines):
        told: list[int] = []
        asked = asyncio.ensure_future(client.generate_stream(request(), told.extend))
        await until(lambda: engines["a"].asked or engines["b"].asked)
        first, other = ("a", "b") if engines["a"].asked else ("b", "a")
        await engines[first].reply(0, "tokens", [7, 8])
        await until(lambda: told == [7, 8])
        await engines[first].die()
        await until(lambda: engines[other].asked)
        await engines[other].reply(0, "tokens", second[:1])
        await engines[other].reply(0, "tokens", second[1:])
        await engines[other].reply(0, *generation(second))
        if fails:
            with pytest.raises(InfrastructureError, match="other tokens than those already told"):
                await asked
            assert told == [7, 8]
        else:
            assert (await asked).token_ids == told == [7, 8, 9]

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_who_gives_up_lets_the_engine_stop(world):
    async def scene(client, engines):
        asked = asyncio.ensure_future(client.generate(request()))
        await until(lambda: engines["a"].asked or engines["b"].asked)
        asked.cancel()
        await until(lambda: engines["a"].given_up + engines["b"].given_up == [0])

    world(lambda: {"a": FakeEngine(), "b": FakeEngine()}, scene)


def test_what_an_engine_out_of_reach_for_a_moment_had_begun_is_given_up_there(world):
    from ray.exceptions import ActorUnavailableError

    async def scene(client, engines):
        (engine,) = engines.values()
        waiting = [asyncio.ensure_future(client.generate(request(seed))) for seed in range(3)]
        await until(lambda: len(engine.asked) == 3)
        waiting[0].cancel()
        engine.error = ActorUnavailableError("the network hiccups", None)
        await engine.stir()
        outcomes = await asyncio.gather(*waiting[1:], return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {InfrastructureError}
        await asyncio.sleep(1)
        assert engine.given_up == [], "nothing reached it"

        engine.error, engine.answers = None, lambda key: [generation()]
        assert (await client.generate(request(9))).token_ids == SAMPLED
        assert sorted(engine.given_up) == [0, 1, 2]

    world(lambda: {"a": FakeEngine()}, scene)


def test_an_engine_that_is_missing_from_the_start_is_a_loss_and_none_at_all_an_error(world):
    async def scene(client, engines):
        assert client.names == ("b",)
        assert [loss.name for loss in client.losses] == ["a"]
        assert (await client.generate(request())).token_ids == SAMPLED

    world(lambda: {"b": answering()}, scene)
    with pytest.raises(EngineError, match="there is no engine"):
        world(dict, scene)
