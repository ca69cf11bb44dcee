"""vLLM in a Ray actor tells of tokens while it samples them, at the price of a few calls."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from agentfly_lib.errors import EngineError
from agentfly_lib.inference import GenerateStream, Generation, GenerationRequest
from agentfly_lib.inference import server as server_module
from agentfly_lib.inference.server import _Mailbox
from agentfly_lib.types import Canary

REPLY = (1, "generation", ([1, 2, 3], [-1.0] * 3, "stop", 0, 0, 0.1, [0, 0, 0]))


class TestMailbox:
    """What one long poll brings."""

    async def test_tokens_of_all_requests_come_together_and_once(self):
        mailbox = _Mailbox()
        for token in range(100):
            for key in range(5):
                mailbox.told(key, [token])
        await asyncio.wait_for(mailbox.wait(), 10)
        assert mailbox.emptied() == [(key, "tokens", list(range(100))) for key in range(5)]
        assert mailbox.emptied() == []

    async def test_tokens_go_before_the_reply_that_they_are_of(self):
        mailbox = _Mailbox()
        mailbox.told(1, [1])
        mailbox.told(2, [7])
        mailbox.told(1, [2, 3])
        mailbox.answered(REPLY)
        assert mailbox.emptied() == [(1, "tokens", [1, 2, 3]), REPLY, (2, "tokens", [7])]

    async def test_tokens_wait_for_their_time_and_a_reply_does_not(self, monkeypatch):
        monkeypatch.setattr(server_module, "_DELTA_SECONDS", 1e6)
        mailbox = _Mailbox()
        mailbox.tokens_sent = -2e6
        mailbox.told(1, [1])
        await asyncio.wait_for(mailbox.wait(), 10)  # the first are due at once
        assert mailbox.emptied() == [(1, "tokens", [1])]
        waiting = asyncio.create_task(mailbox.wait())
        mailbox.told(1, [2])
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        mailbox.answered(REPLY)
        await asyncio.wait_for(waiting, 10)
        assert mailbox.emptied() == [(1, "tokens", [2]), REPLY]

    async def test_a_reply_alone_is_due_at_once(self, monkeypatch):
        monkeypatch.setattr(server_module, "_DELTA_SECONDS", 1e6)
        mailbox = _Mailbox()
        waiting = asyncio.create_task(mailbox.wait())
        await asyncio.sleep(0)
        mailbox.answered(REPLY)
        await asyncio.wait_for(waiting, 10)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(10, 300), k=length)


def request(seed: int, max_tokens: int = 40) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{seed}", token_ids=prompt(20 + seed, seed), max_tokens=max_tokens, seed=seed, stop_token_ids=(77,)
    )


class Told:
    """Keeps what was told, and ends the wait for the first of it."""

    def __init__(self) -> None:
        self.deltas: list[list[int]] = []
        self.begun = asyncio.Event()

    def __call__(self, delta) -> None:
        self.deltas.append(list(delta))
        self.begun.set()

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta]


def same(left: Generation, right: Generation) -> bool:
    """Equal but for the time it took and what the prefix cache held."""
    assert left.logprobs == pytest.approx(right.logprobs, abs=1e-5)
    fields = ("token_ids", "finish", "policy_version", "exact")
    return all(getattr(left, name) == getattr(right, name) for name in fields)


@pytest.fixture
def engine(engines, variants):
    """A client of the shared engine; it serves the first weights again afterwards."""
    from agentfly_lib.inference.actor import RayGenerate, load_weights

    ref = engines("tied")
    yield RayGenerate(ref)
    load_weights(ref, variants["tied"].first_weights, version=0, canary=None)


def unfinished(server) -> int:
    return server._engine._thread.run(lambda engine: engine.get_num_unfinished_requests()).result(10)


async def is_idle(inside, engines) -> None:
    async with asyncio.timeout(30):
        while await asyncio.to_thread(inside, engines("tied"), unfinished) > 0:
            pass


@pytest.mark.stack
@pytest.mark.slow
class TestVllm:
    async def test_what_is_told_is_what_is_given_and_the_same_as_without(self, engine):
        assert isinstance(engine, GenerateStream)
        plain = await asyncio.gather(*(engine.generate(request(seed)) for seed in range(12)))
        told = [Told() for _ in range(12)]
        streamed = await asyncio.gather(
            *(
                engine.generate_stream(request(seed), told[seed]) if seed % 3 else engine.generate(request(seed))
                for seed in range(12)
            )
        )
        for seed in range(12):
            assert same(streamed[seed], plain[seed])
            assert told[seed].token_ids == (streamed[seed].token_ids if seed % 3 else [])
        assert any(generation.token_ids[-1] == 77 for generation in plain)

    async def test_tokens_come_before_the_end_and_cost_no_call_each(self, engine, monkeypatch):
        calls = 0
        (link,) = engine._links.values()
        actor = link.actor

        class Counting:
            submit = actor.submit

            class collect:
                @staticmethod
                def remote(*arguments):
                    nonlocal calls
                    calls += 1
                    return actor.collect.remote(*arguments)

        monkeypatch.setattr(link, "actor", Counting)
        told = [Told() for _ in range(32)]
        loop = asyncio.get_running_loop()
        started = loop.time()
        generations = await asyncio.gather(
            *(engine.generate_stream(request(seed, 120), told[seed]) for seed in range(32))
        )
        seconds = loop.time() - started
        sampled = sum(len(generation.token_ids) for generation in generations)
        assert max(len(each.deltas) for each in told) > 1
        # One call per pause, one per reply, and what begins and ends it.
        assert calls <= seconds / server_module._DELTA_SECONDS + 32 + 3
        assert calls < sampled / 8

    async def test_a_stream_that_nobody_wants_any_more_is_aborted(self, engine, engines, inside):
        told = Told()
        task = asyncio.create_task(engine.generate_stream(request(0, 480), told))
        await asyncio.wait_for(told.begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        count = len(told.deltas)
        await is_idle(inside, engines)
        assert len((await engine.generate(request(1))).token_ids) > 0
        assert len(told.deltas) == count

    async def test_what_the_listener_raises_ends_the_request_and_is_raised(self, engine, engines, inside):
        def broken(delta):
            raise ZeroDivisionError("the listener")

        with pytest.raises(ZeroDivisionError, match="the listener"):
            await engine.generate_stream(request(0, 480), broken)
        await is_idle(inside, engines)

    async def test_a_stream_goes_on_through_an_update_of_the_weights(
        self, engine, engines, variants, reference, beneath
    ):
        from agentfly_lib.inference.actor import load_weights

        ids = tuple(prompt(100, 8))
        canary = Canary(token_ids=ids, logprobs=tuple(reference(variants["tied"].second, ids)))
        told = Told()
        asked = GenerationRequest(request_id="r", token_ids=prompt(20), max_tokens=400, seed=0)
        (task,), updating = await beneath(
            engines("tied"),
            [engine.generate_stream(asked, told)],
            partial(load_weights, engines("tied"), variants["tied"].second_weights, version=1, canary=canary),
        )
        await updating
        generation = await asyncio.wait_for(task, 60)
        assert told.token_ids == generation.token_ids
        assert len(generation.logprobs) == len(generation.token_ids)
        assert generation.policy_version == 0
        assert (generation.versions[0], generation.versions[-1]) == (0, 1)

    async def test_an_update_that_fails_ends_a_stream_with_an_error(
        self, engine, engines, variants, reference, beneath
    ):
        from agentfly_lib.errors import CanaryError
        from agentfly_lib.inference.actor import load_weights

        ids = tuple(prompt(100, 8))
        canary = Canary(token_ids=ids, logprobs=tuple(reference(variants["tied"].second, ids)))
        asked = GenerationRequest(request_id="r", token_ids=prompt(20), max_tokens=480, seed=0)
        (task,), updating = await beneath(
            engines("tied"),
            [engine.generate_stream(asked, Told())],
            partial(load_weights, engines("tied"), variants["tied"].first_weights, version=1, canary=canary),
        )
        with pytest.raises(CanaryError):
            await updating
        with pytest.raises(EngineError, match="may not be used"):
            await asyncio.wait_for(task, 60)
