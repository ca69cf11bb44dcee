"""The scripted policy obeys the rules of a real engine, and its script alone decides what it says."""

import asyncio

import pytest

from agentfly_lib.configs import SamplingConfig
from agentfly_lib.errors import InfrastructureError
from agentfly_lib.inference.generate import GenerationRequest
from agentfly_lib.inference.scripted import ScriptedGenerate
from agentfly_lib.types import FinishReason

STOP = 0


class Characters:
    """Every character is its code point."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids) -> str:
        return "".join(map(chr, ids))


def request(prompt: str = "2+2?", *, request_id: str = "r", max_tokens: int = 100) -> GenerationRequest:
    ids = Characters().encode(prompt)
    return GenerationRequest(request_id=request_id, token_ids=ids, max_tokens=max_tokens, stop_token_ids=(STOP,))


def scripted(script, **options) -> ScriptedGenerate:
    return ScriptedGenerate(script, format=Characters(), **options)


async def test_text_becomes_ids_that_end_with_the_stop_token():
    generation = await scripted(["four"], policy_version=3).generate(request())
    assert generation.token_ids == [102, 111, 117, 114, STOP]
    assert generation.finish is FinishReason.STOP
    assert generation.policy_version == 3


async def test_a_reply_longer_than_the_limit_is_cut_and_finishes_by_length():
    generation = await scripted(["four"]).generate(request(max_tokens=2))
    assert generation.token_ids == [102, 111]
    assert generation.finish is FinishReason.LENGTH


async def test_a_reply_that_just_fits_finishes_by_its_stop_token():
    generation = await scripted(["four"]).generate(request(max_tokens=5))
    assert len(generation.token_ids) == 5
    assert generation.finish is FinishReason.STOP


async def test_ids_are_cut_after_the_first_stop_token_which_is_kept():
    generation = await scripted([[5, STOP, 6]]).generate(request())
    assert generation.token_ids == [5, STOP]


async def test_log_probs_are_negative_and_depend_on_everything_before_the_token():
    script = scripted(lambda _: [7, 8, 9])
    first, again, other = [await script.generate(request(prompt)) for prompt in ("a", "a", "b")]
    assert all(-2.0 < value < 0.0 for value in first.logprobs)
    assert len(set(first.logprobs)) == 3
    assert first.logprobs == again.logprobs
    assert first.logprobs != other.logprobs


async def test_a_list_is_used_in_order_of_arrival_and_ends():
    script = scripted(["a", "b"])
    replies = [(await script.generate(request())).token_ids[0] for _ in range(2)]
    assert replies == [ord("a"), ord("b")]
    with pytest.raises(AssertionError, match=r"holds 2 replies; request 'third' is one more"):
        await script.generate(request(request_id="third"))


async def test_in_a_mapping_the_piece_that_stands_last_in_the_prompt_decides():
    script = scripted({"question": "call", "result": "answer"})
    first = await script.generate(request("question"))
    second = await script.generate(request("question call result"))
    assert Characters().decode(first.token_ids[:-1]) == "call"
    assert Characters().decode(second.token_ids[:-1]) == "answer"
    with pytest.raises(AssertionError, match="no piece of the script"):
        await script.generate(request("something else"))


async def test_an_exception_in_the_script_is_raised_to_the_caller():
    script = scripted(lambda r: InfrastructureError("gone", where="generate") if r.request_id == "bad" else "fine")
    with pytest.raises(InfrastructureError, match="gone"):
        await script.generate(request(request_id="bad"))
    assert (await script.generate(request())).finish is FinishReason.STOP


async def test_requests_wait_for_the_delay_together_and_are_counted():
    gate = asyncio.Event()
    script = scripted(lambda _: "x", delay=lambda _: gate.wait())
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for index in range(3):
            group.create_task(script.generate(request(request_id=str(index))))
        while script.in_flight < 3:
            await asyncio.sleep(0)
        gate.set()
    assert script.max_in_flight == 3
    assert script.in_flight == 0
    assert [r.request_id for r in script.requests] == ["0", "1", "2"]


async def test_a_cancelled_request_is_recorded_and_no_longer_in_flight():
    script = scripted(["x"], delay=lambda _: asyncio.Event().wait())
    task = asyncio.create_task(script.generate(request(request_id="late")))
    while not script.in_flight:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.cancelled == ["late"]
    assert script.in_flight == 0


@pytest.mark.parametrize(("prompt", "max_tokens"), [("", 1), ("p", 0), ("p", -3)])
async def test_requests_that_no_engine_could_serve_are_refused(prompt, max_tokens):
    with pytest.raises(ValueError, match="request 'r'"):
        await scripted(["x"]).generate(request(prompt, max_tokens=max_tokens))


async def test_text_without_a_format_says_what_to_pass():
    with pytest.raises(TypeError, match="format"):
        await ScriptedGenerate(["x"]).generate(request())


class TestStream:
    async def test_one_token_at_a_time_and_the_same_result(self):
        told: list = []
        streamed = await ScriptedGenerate([[5, 6, STOP, 9]]).generate_stream(request(), told.append)
        assert told == [[5], [6], [STOP]]
        assert streamed == await ScriptedGenerate([[5, 6, STOP, 9]]).generate(request())

    async def test_cancelled_in_the_middle(self):
        engine = ScriptedGenerate([[5] * 100])
        told: list = []
        task = asyncio.create_task(engine.generate_stream(request(max_tokens=100), told.append))
        async with asyncio.timeout(10):
            while len(told) < 3:
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(engine.cancelled) == 1
        assert len(told) < 100
        assert engine.in_flight == 0

    async def test_stop_texts(self):
        sampling = SamplingConfig(stop=("cd",))
        asked = GenerationRequest(request_id="r", token_ids=[1], max_tokens=9, sampling=sampling)
        generation = await scripted(["abcdef"]).generate(asked)
        assert generation.token_ids == [ord(character) for character in "abcd"]
        assert generation.finish is FinishReason.STOP
