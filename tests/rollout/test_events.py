"""What a chain tells: whatever happens to it, everything that it opened it closes, innermost first."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.rollout.events import ErrorRaised, ToolCallEnded, TrajectoryEnded, TurnEnded
from agentfly_lib.tools import tool
from agentfly_lib.types import FailureKind, StopReason

CLOSES = {
    "trajectory_started": "trajectory_ended",
    "turn_started": "turn_ended",
    "tool_call_started": "tool_call_ended",
}


def assert_closed(events) -> None:
    stack: list[str] = []
    for event in events:
        if event.type in CLOSES:
            stack.append(CLOSES[event.type])
        elif event.type in CLOSES.values():
            assert stack.pop() == event.type
        elif event.type == "text_delta":
            assert stack[-1] == "turn_ended"
    assert not stack


def of(kind, events) -> list:
    return [event for event in events if isinstance(event, kind)]


def tool_that_waits(began: asyncio.Event):
    @tool
    async def wait() -> None:
        """Never answers."""
        began.set()
        await asyncio.Event().wait()

    return wait


async def test_cancelled_while_the_engine_works(world):
    events = []
    generate = world.scripted("x", delay=lambda _: asyncio.Event().wait())
    task = asyncio.create_task(world.run(generate, on_event=events.append))
    await world.until(lambda: generate.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.type for event in events] == [
        "trajectory_started", "turn_started", "turn_ended", "trajectory_ended",
    ]  # fmt: skip
    assert of(TrajectoryEnded, events)[0].trajectory is None
    assert of(TurnEnded, events)[0].finish is None


async def test_cancelled_while_a_tool_works(world):
    events, began = [], asyncio.Event()
    agent = world.CharacterAgent(tools={"wait": tool_that_waits(began)})
    task = asyncio.create_task(world.run(world.scripted(world.call("wait")), agent, on_event=events.append))
    await asyncio.wait_for(began.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_closed(events)
    assert of(ToolCallEnded, events)[0].result is None
    assert of(TurnEnded, events)[0].text == world.call("wait")


async def test_out_of_time_in_a_tool(world):
    events = []
    agent = world.CharacterAgent(tools={"wait": tool_that_waits(asyncio.Event())})
    limits = dataclasses.replace(world.LIMITS, timeout_seconds=0.05)
    trajectory = await world.run(world.scripted(world.call("wait")), agent, limits=limits, on_event=events.append)
    assert_closed(events)
    (error,) = of(ErrorRaised, events)
    assert error.failure == trajectory.failure
    assert error.failure.kind is FailureKind.TOOL


async def test_an_engine_that_is_gone(world):
    events = []
    with pytest.raises(EngineError):
        await world.run(world.scripted(EngineError("dead")), on_event=events.append)
    assert [event.message for event in of(ErrorRaised, events)] == ["dead"]
    assert_closed(events)


async def test_the_last_event_holds_the_trajectory(world):
    events = []
    trajectory = await world.run(world.scripted(world.call("double", '{"number": 2}'), "4"), on_event=events.append)
    assert events[-1] == TrajectoryEnded(trajectory_id="g/0", trajectory=trajectory)


replies = st.sampled_from(["", "x", "<tool_call>", InfrastructureError("gone", where="generate"), KeyError("bug")])


@settings(deadline=None)
@given(st.lists(replies | st.sampled_from(["count", "double", "submit", "nothing"]), min_size=3, max_size=3))
def test_whatever_is_said(world, script):
    said = [world.call(each) if each in ("count", "double", "submit", "nothing") else each for each in script]
    events = []
    trajectory = asyncio.run(world.run(world.scripted(*said), on_event=events.append))
    assert_closed(events)
    assert (trajectory.stop is StopReason.FAILED) == bool(of(ErrorRaised, events))
    ended = [event for event in of(TurnEnded, events) if event.finish is not None]
    assert [event.text for event in ended] == [
        message["content"] for message in trajectory.messages if message["role"] == "assistant"
    ]
