"""A real vLLM engine behind `RayGenerate`: what it samples is the model's, to the last token and log-prob."""

import asyncio
import random

import pytest

from agentfly_lib.configs import SamplingConfig
from agentfly_lib.errors import InfrastructureError
from agentfly_lib.inference.generate import GenerationRequest
from agentfly_lib.types import FinishReason

pytestmark = [pytest.mark.stack, pytest.mark.slow]

CONTEXT, EOS = 512, 3


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(10, 300), k=length)


def request(token_ids, *, max_tokens=24, temperature=1.0, seed=7, **rest) -> GenerationRequest:
    sampling = SamplingConfig(temperature=temperature)
    return GenerationRequest(
        request_id="r", token_ids=token_ids, max_tokens=max_tokens, sampling=sampling, seed=seed, **rest
    )


@pytest.fixture
def generate(served):
    from agentfly_lib.inference.actor import RayGenerate

    return RayGenerate(served).generate


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_log_probs_are_those_of_the_distribution_after_temperature(
    generate, variants, variant, reference, temperature
):
    generations = await asyncio.gather(
        *(generate(request(prompt(40 + i, i), temperature=temperature, seed=i)) for i in range(8))
    )
    for i, generation in enumerate(generations):
        whole = prompt(40 + i, i) + generation.token_ids
        expected = reference(variants[variant].first, whole, temperature)[-len(generation.token_ids) :]
        assert len(generation.token_ids) == 24
        assert generation.logprobs == pytest.approx(expected, abs=1e-5)


async def test_greedy_takes_the_most_probable_token_and_gives_its_unscaled_log_prob(
    generate, variants, variant, reference
):
    ids = prompt(50)
    generation = await generate(request(ids, temperature=0.7, greedy=True, max_tokens=8))
    for step, token in enumerate(generation.token_ids):
        before = ids + generation.token_ids[:step]
        candidates = [reference(variants[variant].first, [*before, other])[-1] for other in range(300)]
        assert token == max(range(300), key=candidates.__getitem__)
        assert generation.logprobs[step] == pytest.approx(candidates[token], abs=1e-5)


SHAPED = SamplingConfig(
    temperature=0.7,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=-0.25,
    min_tokens=10,
    logit_bias={20: 2.5, 21: -100.0, 22: 2.0},
)


@pytest.mark.parametrize("greedy", [False, True])
async def test_penalties_and_biases_are_as_defined(generate, variants, variant, logits_of, shaped, greedy):
    stops = tuple(range(100, 300))  # two of three tokens: without `min_tokens` the turn would end at once
    asked = GenerationRequest(
        request_id="r",
        token_ids=prompt(40),
        max_tokens=24,
        sampling=SHAPED,
        seed=5,
        stop_token_ids=stops,
        greedy=greedy,
    )
    generation, _ = await asyncio.gather(generate(asked), generate(request(prompt(30))))
    ids = generation.token_ids
    assert len(ids) >= 11
    rows = logits_of(variants[variant].first, [*asked.token_ids, *ids])[len(asked.token_ids) - 1 :]
    for step, token in enumerate(ids):
        expected = shaped(rows[step], SHAPED, prompt=asked.token_ids, sampled=ids[:step], stops=stops, greedy=greedy)
        assert generation.logprobs[step] == pytest.approx(expected[token], abs=1e-4)
        if greedy:
            assert expected[token] == pytest.approx(max(expected), abs=1e-4)


async def test_a_bias_beyond_the_vocabulary_is_refused_and_the_engine_goes_on(generate):
    asked = GenerationRequest(
        request_id="r", token_ids=[11], max_tokens=2, sampling=SamplingConfig(logit_bias={300: 1.0})
    )
    with pytest.raises(ValueError, match=r"request 'r'.*300"):
        await generate(asked)
    assert len((await generate(request(prompt(10)))).token_ids) == 24


def first_with(token_ids, text) -> int:
    """How many tokens it takes until their text holds `text`."""
    words = [f"w{token}" for token in token_ids]
    return next(number for number in range(len(words) + 1) if text in "".join(words[:number]))


@pytest.mark.parametrize("streamed", [False, True])
async def test_it_stops_at_the_token_that_completes_a_stop_text(served, generate, inside, streamed):
    from agentfly_lib.inference.actor import RayGenerate

    free = await generate(request(prompt(40), max_tokens=60))
    text = f"{free.token_ids[30]}w{free.token_ids[31]}"
    number = first_with(free.token_ids, text)
    asked = GenerationRequest(
        request_id="r",
        token_ids=prompt(40),
        max_tokens=400,
        sampling=SamplingConfig(stop=("never", text)),
        seed=7,
    )
    told: list[int] = []
    stopped = await (RayGenerate(served).generate_stream(asked, told.extend) if streamed else generate(asked))
    assert stopped.finish is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[:number]
    assert stopped.logprobs == pytest.approx(free.logprobs[:number], abs=1e-5)
    assert stopped.policy_version == free.policy_version == 0
    assert told == (stopped.token_ids if streamed else [])
    async with asyncio.timeout(20):
        while await asyncio.to_thread(inside, served, unfinished) > 0:
            pass


async def test_a_greedy_request_beside_sampled_ones_is_still_greedy(generate):
    ids = prompt(50)
    alone = await generate(request(ids, greedy=True))
    together = await asyncio.gather(
        generate(request(ids, greedy=True)), *(generate(request(ids, temperature=0.7, seed=i)) for i in range(6))
    )
    assert together[0].token_ids == alone.token_ids
    assert together[0].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


async def test_a_seed_gives_the_same_tokens_in_any_order_of_submission(generate):
    requests = [request(prompt(30 + i, i), seed=2**62 + i) for i in range(24)]
    order = list(range(24))
    random.Random(5).shuffle(order)
    first = await asyncio.gather(*(generate(r) for r in requests))
    shuffled = await asyncio.gather(*(generate(requests[i]) for i in order))
    alone = await generate(requests[11])
    for position, i in enumerate(order):
        assert shuffled[position].token_ids == first[i].token_ids
    assert alone.token_ids == first[11].token_ids


async def test_different_seeds_differ(generate):
    ids = prompt(30)
    generations = await asyncio.gather(*(generate(request(ids, seed=i)) for i in range(8)))
    assert len({tuple(g.token_ids) for g in generations}) == 8


async def test_the_second_turn_finds_the_first_in_the_prefix_cache(generate):
    ids = prompt(70, seed=99)
    first = await generate(request(ids))
    second = await generate(request(ids + first.token_ids + prompt(10, seed=1)))
    assert first.cached_tokens == 0
    assert (
        second.cached_tokens == 64
    )  # 70 + 24 tokens are two full blocks of 32 and a rest; the last token has no keys yet


async def test_it_stops_at_the_requests_stop_tokens_only_and_keeps_them(generate):
    ids = prompt(40, seed=3)
    free = await generate(request(ids, max_tokens=200))
    assert free.finish is FinishReason.LENGTH
    assert len(free.token_ids) == 200
    stop = free.token_ids[10]
    first = free.token_ids.index(stop)
    stopped = await generate(request(ids, max_tokens=200, stop_token_ids=(stop,)))
    assert stopped.finish is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[: first + 1]


async def test_the_end_of_sequence_token_of_the_models_config_does_not_stop(generate):
    generations = await asyncio.gather(*(generate(request(prompt(20), max_tokens=100, seed=i)) for i in range(24)))
    assert any(EOS in g.token_ids[:-1] for g in generations)
    assert {g.finish for g in generations} == {FinishReason.LENGTH}


async def test_the_end_of_the_context_ends_a_generation_by_length(generate):
    generation = await generate(request(prompt(CONTEXT - 10), max_tokens=100))
    assert generation.finish is FinishReason.LENGTH
    assert len(generation.token_ids) == 10


@pytest.mark.parametrize("length", [0, CONTEXT, CONTEXT + 5])
async def test_a_prompt_that_leaves_no_room_is_refused(generate, length):
    with pytest.raises(ValueError, match="prompt of"):
        await generate(request(prompt(length)))


async def test_a_token_outside_the_vocabulary_is_refused_and_the_engine_goes_on(generate):
    with pytest.raises(ValueError, match="request 'r'"):
        await generate(request([5, 6, 300]))
    assert len((await generate(request(prompt(10)))).token_ids) == 24


def unfinished(server) -> int:
    return server._engine._thread.run(lambda engine: engine.get_num_unfinished_requests()).result(10)


async def test_a_cancelled_request_is_aborted_in_the_engine(served, generate, inside):
    task = asyncio.create_task(generate(request(prompt(10), max_tokens=480)))
    async with asyncio.timeout(20):
        while await asyncio.to_thread(inside, served, unfinished) == 0:
            pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        while await asyncio.to_thread(inside, served, unfinished) > 0:
            pass


def test_an_engine_listens_on_the_loopback_interface_alone(served, listening):
    from agentfly_lib.inference.actor import engine_status

    assert listening(engine_status(served)[0].pid) <= {"127.0.0.1", "::1"}


async def test_a_request_over_its_time_limit_fails_as_infrastructure_and_is_aborted(served, generate, inside):
    def limit(seconds):
        def set_limit(server):
            from dataclasses import replace

            settings = server._engine.settings
            inference = settings.inference.model_copy(update={"request_timeout_seconds": seconds})
            server._engine.settings = replace(settings, inference=inference)

        return set_limit

    inside(served, limit(0.05))
    try:
        with pytest.raises(InfrastructureError, match=r"'r' had no answer within 0\.05 s") as failure:
            await generate(request(prompt(10), max_tokens=480))
    finally:
        inside(served, limit(600.0))
    assert failure.value.where == "generate"
    async with asyncio.timeout(20):
        while await asyncio.to_thread(inside, served, unfinished) > 0:
            pass
