"""Events of a run: in order, each opened one closed, whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from itertools import groupby

import pytest

from agentfly_lib.agents import HFAgent
from agentfly_lib.errors import DataError, EngineError, InfrastructureError
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.rewards import reward
from agentfly_lib.tools import tool
from agentfly_lib.types import FailureKind, FinishReason

CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 2}}\n</tool_call>'
PAIRS = {
    "run_started": "run_ended",
    "trajectory_started": "trajectory_ended",
    "turn_started": "turn_ended",
    "tool_call_started": "tool_call_ended",
}


@tool
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def made(model_path, script, *, delay=None, **options) -> HFAgent:
    options.setdefault("tools", [double])
    chat = HFAgent(model_path).chat
    return HFAgent(model_path, backend=ScriptedGenerate(script, format=chat, delay=delay), **options)


async def events_of(agent, *args, **options) -> list:
    return [event async for event in agent.stream(*args, **options)]


def types(events) -> list[str]:
    return [event.type for event in events]


def assert_closed(events) -> None:
    """Every opened thing is closed exactly once, inside what it was opened in."""
    open_things: dict[str | None, list[str]] = {}
    for event in events:
        chain = getattr(event, "trajectory_id", None)
        stack = open_things.setdefault(chain, [])
        if event.type in PAIRS:
            stack.append(PAIRS[event.type])
        elif event.type in PAIRS.values():
            assert stack.pop() == event.type
    assert not any(open_things.values()), open_things


async def test_a_call_and_an_answer(model_path):
    events = [
        next(run) for _, run in groupby(await events_of(made(model_path, [CALL, "It is 4."]), "2 * 2?"), key=type)
    ]
    assert types(events) == [
        "run_started",
        "trajectory_started",
        "turn_started", "tool_call_started", "tool_call_ended", "turn_ended",  # the call is told, its markup is not
        "turn_started", "text_delta", "turn_ended",
        "trajectory_ended",
        "run_ended",
    ]  # fmt: skip
    called, answered, first, second = (events[index] for index in (3, 4, 5, 8))
    assert (called.call.name, called.call.arguments) == ("double", {"number": 2})
    assert answered.call == called.call
    assert answered.result.observation == "4"
    assert (first.turn, first.text, first.finish) == (0, CALL, FinishReason.STOP)
    assert (second.turn, second.text) == (1, "It is 4.")
    assert_closed(events)


async def test_the_result_comes_last_with_its_rewards(model_path):
    @reward(inline=True)
    def long(prediction: str) -> float:
        return float(len(prediction))

    agent = made(model_path, ["four"] * 3, reward_fn=long)
    events = await events_of(agent, ["?"] * 3)
    result = events[-1].result
    assert result.rewards == [4.0] * 3
    assert agent.trajectories == result.trajectories
    ended = [event.trajectory.id for event in events if event.type == "trajectory_ended"]
    assert sorted(ended) == ["0/0", "1/0", "2/0"]


async def test_an_engine_that_streams_gives_many_deltas_of_the_same_text(model_path):
    text = "Vier 👩‍👩‍👧 ist 四."
    events = await events_of(made(model_path, [text]), "?")
    deltas = [event.text for event in events if event.type == "text_delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == text == events[-3].text


async def test_the_markup_of_calls_is_never_shown(model_path):
    events = await events_of(made(model_path, [f"Let me see. {CALL}", "4"]), "2 * 2?")
    first, second = (event for event in events if event.type == "turn_ended")
    shown = [[e.text for e in events if e.type == "text_delta" and e.turn == turn.turn] for turn in (first, second)]
    assert len(shown[0]) > 3
    assert ["".join(texts) for texts in shown] == ["Let me see.", "4"]
    assert first.text == f"Let me see. {CALL}"


async def test_events_of_several_chains_are_closed_each(model_path):
    events = await events_of(made(model_path, {"?": CALL, "<tool_response>": "4"}), "?", num_chains=5)
    assert Counter(types(events))["trajectory_ended"] == 5
    assert_closed(events)


async def test_malformed_calls_are_opened_and_closed_too(model_path):
    events = await events_of(made(model_path, ["<tool_call>{</tool_call>" + CALL, "x"]), "?")
    results = [event.result for event in events if event.type == "tool_call_ended"]
    assert results[0].error
    assert results[1].observation == "4"
    assert_closed(events)


async def test_a_turn_that_is_cut(model_path):
    events = await events_of(made(model_path, [CALL]), "?", generation_config={"max_tokens": 3})
    (ended,) = (event for event in events if event.type == "turn_ended")
    assert ended.finish is FinishReason.LENGTH
    assert_closed(events)


async def test_a_chain_that_breaks(model_path):
    broken = InfrastructureError("no engine", where="generate")
    events = await events_of(made(model_path, [CALL, broken]), "?")
    (error,) = (event for event in events if event.type == "error")
    assert (error.trajectory_id, error.message) == ("0/0", "no engine")
    assert error.failure == events[-1].result.trajectories[0].failure
    assert events[-4].finish is None
    assert_closed(events)


async def test_an_engine_that_is_gone_closes_everything_and_then_raises(model_path):
    waiting = asyncio.Event()
    script = {"first": EngineError("dead"), "second": "never"}

    async def delay(request):
        if request.request_id.startswith("1/"):
            waiting.set()
            await asyncio.Event().wait()
        await waiting.wait()

    events = []

    async def listen() -> None:
        async for event in made(model_path, script, delay=delay).stream(["first", "second"]):
            events.append(event)

    with pytest.raises(EngineError, match="dead"):
        await listen()
    assert types(events)[-2:] == ["error", "run_ended"]
    assert events[-1].result is None
    assert [e.trajectory for e in events if e.type == "trajectory_ended"] == [None, None]
    assert_closed(events)


async def test_leaving_early_cancels_what_is_in_flight(model_path):
    agent = made(model_path, ["never"] * 2, delay=lambda request: asyncio.Event().wait())
    engine = agent._host.engine
    async with aclosing(agent.stream("?", num_chains=2)) as stream:
        async for event in stream:
            if event.type == "turn_started" and engine.in_flight == 2:
                break
            await asyncio.sleep(0)
    assert sorted(engine.cancelled) == ["0/0/0", "0/1/0"]
    assert engine.in_flight == 0


async def test_cancelling_whoever_listens_cancels_the_run(model_path):
    agent = made(model_path, ["never"], delay=lambda request: asyncio.Event().wait())
    engine = agent._host.engine
    task = asyncio.create_task(events_of(agent, "?"))
    async with asyncio.timeout(10):
        while not engine.in_flight:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.cancelled == ["0/0/0"]


async def test_mistakes_are_raised_before_anything_happens(model_path):
    with pytest.raises(DataError):
        await events_of(made(model_path, []), [])


@pytest.mark.stack
async def test_a_model_that_writes_broken_characters_all_the_time_is_told_without_losing_one(random_model):
    """A byte-level vocabulary and random weights: characters of several tokens begin, end and break off anywhere."""
    pytest.importorskip("torch")
    agent = HFAgent(random_model, [], backend_config={"backend": "transformers", "context_length": 512})
    config = {"max_tokens": 200, "seed": 3}
    events = await events_of(agent, "Say it", num_chains=3, generation_config=config)
    plain = await agent.run("Say it", num_chains=3, generation_config=config)
    for told, other in zip(events[-1].result.trajectories, plain.trajectories, strict=True):
        deltas = [e.text for e in events if e.type == "text_delta" and e.trajectory_id == told.id]
        assert len(deltas) > 20
        assert told.final_response == other.final_response
        assert "".join(deltas) == told.final_response.strip()
        assert "\ufffd" in told.final_response
        assert told.segments[0].token_ids.tolist() == other.segments[0].token_ids.tolist()
        assert told.segments[0].logprobs.tolist() == pytest.approx(
            other.segments[0].logprobs.tolist(), abs=1e-5, nan_ok=True
        )
    assert_closed(events)
    await agent.close()


async def test_text_of_a_server_comes_in_pieces(model_path, fake_server):
    text = "Vier 👩‍👩‍👧 ist 四."

    async def pieces():
        for character in text:
            chunk = {"choices": [{"text": character, "finish_reason": None}]}
            data = b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
            yield data[:40]
            yield data[40:]
        yield b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

    server = await fake_server(lambda path, body: pieces())
    agent = HFAgent(model_path, [], backend_config={"backend": "openai", "base_url": server.url, "tokens": "text"})
    events = await events_of(agent, "?")
    deltas = [event.text for event in events if event.type == "text_delta"]
    assert deltas == [
        *"Vier",
        " 👩",
        "\u200d",
        "👩",
        "\u200d",
        "👧",
        " i",
        "s",
        "t",
        " 四",
        ".",
    ]  # no space comes alone
    assert next(event for event in events if event.type == "turn_ended").text == text
    assert_closed(events)
    await agent.close()


async def test_a_server_that_breaks_off_in_the_middle(model_path, fake_server):
    async def pieces():
        yield b'data: {"choices": [{"text": "Vi", "finish_reason": null}]}\n\n'
        yield server.HANG_UP

    server = await fake_server(lambda path, body: pieces())
    agent = HFAgent(model_path, [], backend_config={"backend": "openai", "base_url": server.url, "tokens": "text"})
    events = await events_of(agent, "?")
    assert [event.text for event in events if event.type == "text_delta"] == ["Vi"]
    (error,) = (event for event in events if event.type == "error")
    assert "broke off its answer" in error.message
    assert error.failure.kind is FailureKind.INFRASTRUCTURE
    assert_closed(events)
    await agent.close()
