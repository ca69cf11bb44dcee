"""The `transformers` backend: what it samples is the model's to the last log-prob, whatever is decoded beside it."""

from __future__ import annotations

import asyncio
import math
import random
import threading

import pytest

from agentfly_lib.configs import SamplingConfig, TransformersConfig
from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference import GenerationRequest
from agentfly_lib.types import FinishReason

pytest.importorskip("torch")

from agentfly_lib.inference.transformers import TransformersEngine

pytestmark = pytest.mark.stack

CONTEXT = 512


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(10, 300), k=length)


def request(token_ids, *, max_tokens=12, seed=7, stop_token_ids=(), greedy=False, **sampling) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        token_ids=token_ids,
        max_tokens=max_tokens,
        sampling=SamplingConfig(**sampling),
        seed=seed,
        stop_token_ids=stop_token_ids,
        greedy=greedy,
    )


@pytest.fixture(scope="module")
def folder(variants):
    return variants["tied"].first


@pytest.fixture
async def engine(folder):
    engine = TransformersEngine(folder, context_length=CONTEXT)
    yield engine
    await engine.close()


class Watched:
    """A model that counts its passes, waits at a gate, or breaks."""

    def __init__(self, folder) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.passes: list[tuple[int, int]] = []  # rows, columns
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.entered = threading.Event()
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        forward = self._model.forward

        def watched(input_ids=None, attention_mask=None, logits_to_keep=0, **rest):
            self.passes.append(tuple(input_ids.shape))
            self.entered.set()
            self.gate.wait(30)
            if self.error is not None:
                raise self.error
            return forward(input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=logits_to_keep, **rest)

        self._model.forward = watched

    def load(self):
        return self._model

    async def enters(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}])
async def test_log_probs_are_those_of_a_full_pass_after_temperature(engine, folder, reference, sampling):
    requests = [request(prompt(5 + 9 * i, i), seed=i, **sampling) for i in range(6)]
    for asked, generation in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
        whole = [*asked.token_ids, *generation.token_ids]
        expected = reference(folder, whole, sampling.get("temperature", 1.0))[-12:]
        assert len(generation.token_ids) == 12
        assert generation.exact
        assert generation.finish is FinishReason.LENGTH
        assert generation.logprobs == pytest.approx(expected, abs=1e-5)


async def test_truncated_log_probs_are_of_what_is_left(engine, folder, reference):
    ids = prompt(20)
    generation = await engine.generate(request(ids, top_k=2, max_tokens=1))
    candidates = sorted((reference(folder, [*ids, token])[-1] for token in range(300)), reverse=True)[:2]
    left = math.log(sum(map(math.exp, candidates)))
    assert min(abs(generation.logprobs[0] - (c - left)) for c in candidates) < 1e-5


async def test_greedy_takes_the_most_probable_token(engine, folder, reference):
    ids = prompt(30)
    generation = await engine.generate(request(ids, greedy=True, max_tokens=3, temperature=0.5))
    for step, token in enumerate(generation.token_ids):
        before = ids + generation.token_ids[:step]
        candidates = [reference(folder, [*before, other])[-1] for other in range(300)]
        assert token == max(range(300), key=candidates.__getitem__)
        assert generation.logprobs[step] == pytest.approx(candidates[token], abs=1e-5)


async def test_a_seed_gives_the_same_tokens_whatever_is_decoded_beside_it(engine):
    requests = [request(prompt(10 + 7 * i, i), seed=2**62 + i, max_tokens=4 + i) for i in range(10)]
    together = await asyncio.gather(*map(engine.generate, requests))
    reverse = await asyncio.gather(*map(engine.generate, requests[::-1]))
    alone = [await engine.generate(asked) for asked in requests[:3]]
    assert [g.token_ids for g in together] == [g.token_ids for g in reverse[::-1]]
    assert [g.token_ids for g in alone] == [g.token_ids for g in together[:3]]
    assert len({tuple((await engine.generate(request(prompt(9), seed=i))).token_ids) for i in range(6)}) == 6


async def test_it_stops_at_the_requests_stop_tokens_and_keeps_them(engine):
    ids = prompt(25, seed=3)
    free = await engine.generate(request(ids, max_tokens=40))
    stop = free.token_ids[10]
    stopped = await engine.generate(request(ids, max_tokens=40, stop_token_ids=(stop,)))
    assert stopped.finish is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_the_end_of_the_context_ends_a_generation_by_length(engine):
    generation = await engine.generate(request(prompt(CONTEXT - 5), max_tokens=100))
    assert (generation.finish, len(generation.token_ids)) == (FinishReason.LENGTH, 5)


@pytest.mark.parametrize("ids", [[], prompt(CONTEXT), [5, -1], [5, 300]])
async def test_requests_that_no_model_could_serve_are_refused_alone(engine, ids):
    other = engine.generate(request(prompt(5)))
    refused, served = await asyncio.gather(engine.generate(request(ids)), other, return_exceptions=True)
    assert isinstance(refused, ValueError)
    assert "request 'r'" in str(refused)
    assert len(served.token_ids) == 12


async def test_requests_that_arrive_together_are_one_batch(folder):
    model = Watched(folder)
    engine = TransformersEngine("m", context_length=CONTEXT, load=model.load)
    await asyncio.gather(*(engine.generate(request(prompt(5 + i), max_tokens=3)) for i in range(8)))
    assert model.passes == [(8, 12), (8, 1), (8, 1)]
    await engine.close()


async def test_a_request_joins_between_two_tokens_and_changes_nothing(folder, engine):
    model = Watched(folder)
    joined = TransformersEngine("m", context_length=CONTEXT, load=model.load)
    model.gate.clear()
    long, short = request(prompt(40, 1), max_tokens=20), request(prompt(9, 2), max_tokens=6)
    first = asyncio.create_task(joined.generate(long))
    await model.enters()
    second = asyncio.create_task(joined.generate(short))
    await asyncio.sleep(0)  # it is in the inbox now
    model.gate.set()
    together = [await first, await second]
    assert model.passes[:3] == [(1, 40), (1, 1), (1, 9)]
    assert model.passes[3] == (2, 1)
    for asked, generation in zip((long, short), together, strict=True):
        alone = await engine.generate(asked)
        assert generation.token_ids == alone.token_ids
        assert generation.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    await joined.close()


async def test_no_more_rows_than_asked_for(folder):
    model = Watched(folder)
    engine = TransformersEngine("m", TransformersConfig(max_sequences=2), context_length=CONTEXT, load=model.load)
    done = await asyncio.gather(*(engine.generate(request(prompt(5), max_tokens=2, seed=i)) for i in range(5)))
    assert len(done) == 5
    assert max(rows for rows, _ in model.passes) == 2
    await engine.close()


async def test_a_cancelled_request_leaves_the_batch(folder):
    model = Watched(folder)
    engine = TransformersEngine("m", context_length=CONTEXT, load=model.load)
    model.gate.clear()
    given_up = asyncio.create_task(engine.generate(request(prompt(5), max_tokens=400)))
    kept = asyncio.create_task(engine.generate(request(prompt(5), max_tokens=3)))
    await model.enters()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    model.gate.set()
    assert len((await kept).token_ids) == 3
    assert model.passes[-1][0] == 1
    await engine.close()


async def test_a_request_over_its_time_limit_fails_as_infrastructure(folder):
    model = Watched(folder)
    model.gate.clear()
    config = TransformersConfig(request_timeout_seconds=0.05)
    engine = TransformersEngine("m", config, context_length=CONTEXT, load=model.load)
    with pytest.raises(InfrastructureError, match=r"'r' had no answer within 0\.05 s"):
        await engine.generate(request(prompt(5)))
    model.gate.set()
    await engine.close()


async def test_a_model_that_breaks_fails_whoever_waits_and_whoever_comes(folder):
    model = Watched(folder)
    engine = TransformersEngine("m", context_length=CONTEXT, load=model.load)
    model.error = RuntimeError("out of memory")
    failures = await asyncio.gather(*(engine.generate(request(prompt(5))) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(f, EngineError) and "out of memory" in str(f) for f in failures)
    with pytest.raises(EngineError, match="out of memory"):
        await engine.generate(request(prompt(5)))
    model.error = None
    await engine.close()
    assert len((await engine.generate(request(prompt(5)))).token_ids) == 12  # a new engine
    await engine.close()


async def test_a_model_that_cannot_be_loaded(tmp_path):
    engine = TransformersEngine(tmp_path, context_length=CONTEXT)
    with pytest.raises(EngineError, match=str(tmp_path)):
        await engine.generate(request(prompt(5)))


def test_one_event_loop_after_another(folder):
    engine = TransformersEngine(folder, context_length=CONTEXT)
    first = asyncio.run(engine.generate(request(prompt(5))))
    second = asyncio.run(engine.generate(request(prompt(5))))
    assert first.token_ids == second.token_ids
    asyncio.run(engine.close())


async def test_closing_fails_whoever_waits(folder):
    model = Watched(folder)
    engine = TransformersEngine("m", context_length=CONTEXT, load=model.load)
    model.gate.clear()
    waiting = asyncio.create_task(engine.generate(request(prompt(5))))
    await model.enters()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    model.gate.set()
    await closing
    with pytest.raises(InfrastructureError, match="closed"):
        await waiting


EVERYTHING = SamplingConfig(
    temperature=0.7,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=-0.25,
    min_tokens=10,
    logit_bias={20: 2.5, 21: -100.0, 22: 2.0},
)


@pytest.mark.parametrize("greedy", [False, True])
async def test_penalties_and_biases_are_as_defined_and_touch_no_other_request(
    engine, folder, logits_of, shaped, reference, greedy
):
    stops = tuple(range(100, 300))
    asked = GenerationRequest(
        request_id="r",
        token_ids=prompt(40),
        max_tokens=24,
        sampling=EVERYTHING,
        seed=5,
        stop_token_ids=stops,
        greedy=greedy,
    )
    generation, other = await asyncio.gather(engine.generate(asked), engine.generate(request(prompt(30))))
    ids = generation.token_ids
    assert len(ids) >= 11
    for step, row in enumerate(logits_of(folder, [*asked.token_ids, *ids])[len(asked.token_ids) - 1 : -1]):
        expected = shaped(row, EVERYTHING, prompt=asked.token_ids, sampled=ids[:step], stops=stops, greedy=greedy)
        assert generation.logprobs[step] == pytest.approx(expected[ids[step]], abs=1e-4)
        if greedy:
            assert expected[ids[step]] == pytest.approx(max(expected), abs=1e-4)
    assert other.logprobs == pytest.approx(reference(folder, [*prompt(30), *other.token_ids])[-12:], abs=1e-5)


async def test_a_bias_beyond_the_vocabulary_is_refused(engine):
    with pytest.raises(ValueError, match="300"):
        await engine.generate(request(prompt(5), logit_bias={300: 1.0}))
    assert len((await engine.generate(request(prompt(5)))).token_ids) == 12


async def test_it_stops_at_the_token_that_completes_a_stop_text(engine):
    free = await engine.generate(request(prompt(40), max_tokens=40))
    text = f"{free.token_ids[20]}w{free.token_ids[21]}"
    words = [f"w{token}" for token in free.token_ids]
    number = next(number for number in range(41) if text in "".join(words[:number]))
    stopped = await engine.generate(request(prompt(40), max_tokens=40, stop=("never", text)))
    assert stopped.token_ids == free.token_ids[:number]
    assert stopped.logprobs == pytest.approx(free.logprobs[:number], abs=1e-5)
    assert stopped.finish is FinishReason.STOP


async def test_stop_texts_without_a_tokenizer(folder):
    engine = TransformersEngine("no such model", context_length=CONTEXT, load=Watched(folder).load)
    with pytest.raises(ValueError, match="stop strings need the tokenizer of no such model"):
        await engine.generate(request(prompt(5), stop=("x",)))


class TestStream:
    async def test_every_token_is_told_once_and_the_result_is_the_same(self, engine):
        requests = [request(prompt(10 + i, i), seed=i, stop_token_ids=(77,), max_tokens=30) for i in range(8)]
        plain = await asyncio.gather(*map(engine.generate, requests))
        told: list[list] = [[] for _ in requests]
        streamed = await asyncio.gather(
            *(engine.generate_stream(asked, told[i].append) for i, asked in enumerate(requests))
        )
        for left, right, deltas in zip(streamed, plain, told, strict=True):
            assert deltas == [[token] for token in left.token_ids]
            assert (left.token_ids, left.finish) == (right.token_ids, right.finish)
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-5)

    async def test_a_token_is_told_before_the_next_is_sampled(self, folder):
        model = Watched(folder)
        engine = TransformersEngine("m", context_length=CONTEXT, load=model.load)
        told: list = []
        first = asyncio.Event()

        def tell(delta) -> None:
            told.append(delta)
            model.gate.clear()  # the model waits before its next pass
            first.set()

        task = asyncio.create_task(engine.generate_stream(request(prompt(5), max_tokens=400), tell))
        async with asyncio.timeout(60):
            await first.wait()
            assert not task.done()
            model.gate.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        count = len(told)
        passes = len(model.passes)
        await engine.generate(request(prompt(5), max_tokens=2))
        assert len(told) == count, "nobody is told after the end"
        assert count < 400
        assert passes < 400
        await engine.close()

    async def test_what_the_listener_raises_ends_the_request_and_is_raised(self, engine):
        def broken(delta):
            raise ZeroDivisionError("the listener")

        with pytest.raises(ZeroDivisionError, match="the listener"):
            await engine.generate_stream(request(prompt(5), max_tokens=400), broken)
        with pytest.raises(ZeroDivisionError, match="the listener"):  # also if it is the last token
            await engine.generate_stream(request(prompt(5), max_tokens=1), broken)
        assert len((await engine.generate(request(prompt(5)))).token_ids) == 12

    async def test_a_model_that_breaks_in_the_middle(self, folder):
        model = Watched(folder)
        engine = TransformersEngine("m", context_length=CONTEXT, load=model.load)
        told: list = []

        def tell(delta) -> None:
            told.append(delta)
            model.error = RuntimeError("out of memory")

        with pytest.raises(EngineError, match="out of memory"):
            await engine.generate_stream(request(prompt(5), max_tokens=400), tell)
        assert told
        await engine.close()
