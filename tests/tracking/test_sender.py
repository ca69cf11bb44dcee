"""Delivery in order, whatever the server does. The sink is a scripted one; MLflow has tests of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentfly_lib.tracking.outbox import Event, Outbox
from agentfly_lib.tracking.sender import Backoff, EventRefused, Sender, SinkUnavailable

DEADLINE = 20.0


class ScriptedSink:
    """Records what it gets; `answer` may raise instead."""

    def __init__(self) -> None:
        self.delivered: list[str] = []
        self.tries = 0
        self.answer: Callable[[Sequence[Event]], None] = lambda events: None
        self.changed = threading.Condition()

    def deliver(self, events: Sequence[Event]) -> Event:
        with self.changed:
            self.tries += 1
            self.changed.notify_all()
            self.answer(events)
            self.delivered += [event.kind for event in events]
            self.changed.notify_all()
        return events[-1]

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE), f"not in time; delivered: {self.delivered}"


@pytest.fixture
def outbox(tmp_path: Path):
    opened = Outbox(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def sink():
    return ScriptedSink()


@pytest.fixture
def sender(outbox: Outbox, sink: ScriptedSink, tmp_path: Path):
    made = Sender(
        outbox,
        lambda: sink,
        refused_file=tmp_path / "refused.jsonl",
        backoff=Backoff(first=0.001, limit=0.01),
        linger_seconds=0.0,
    )
    yield made
    made.close(DEADLINE)


def unavailable(events: Sequence[Event]) -> None:
    raise SinkUnavailable("down")


def test_what_an_earlier_process_left_goes_first(outbox: Outbox, sender: Sender, sink: ScriptedSink):
    outbox.append("old", {})
    sender.start()
    outbox.append("new", {})
    sender.wake()

    assert sender.close(DEADLINE)
    assert sink.delivered == ["old", "new"]
    assert outbox.pending() == 0


def test_an_outage_keeps_everything_and_then_delivers_in_order(outbox: Outbox, sender: Sender, sink: ScriptedSink):
    sink.answer = unavailable
    sender.start()
    for number in range(5):
        outbox.append(f"event {number}", {})
        sender.wake()
    sink.wait(lambda: sink.tries >= 3)
    assert outbox.pending() == 5

    sink.answer = lambda events: None

    sink.wait(lambda: len(sink.delivered) == 5)
    assert sink.delivered == [f"event {number}" for number in range(5)]


def test_a_refused_event_is_set_aside_with_its_reason_and_the_rest_goes_on(
    outbox: Outbox, sender: Sender, sink: ScriptedSink, tmp_path: Path
):
    def refuse(events: Sequence[Event]) -> None:
        if events[0].kind == "bad":
            raise EventRefused(events[0], "no such thing")

    sink.answer = refuse
    outbox.append("bad", {"value": 7})
    outbox.append("good", {})
    sender.start()

    assert sender.close(DEADLINE)
    assert sink.delivered == ["good"]
    assert sender.refused == 1
    refused = json.loads((tmp_path / "refused.jsonl").read_text())
    assert refused == {"sequence": 1, "kind": "bad", "reason": "no such thing", "payload": {"value": 7}}


def test_an_error_of_our_own_does_not_end_the_thread(outbox: Outbox, sender: Sender, sink: ScriptedSink):
    def broken(events: Sequence[Event]) -> None:
        raise ZeroDivisionError

    sink.answer = broken
    outbox.append("event", {})
    sender.start()
    sink.wait(lambda: sink.tries >= 2)

    sink.answer = lambda events: None

    assert sender.close(DEADLINE)
    assert sink.delivered == ["event"]


def test_closing_while_the_server_is_down_gives_up_in_time_and_keeps_what_is_left(
    outbox: Outbox, sender: Sender, sink: ScriptedSink
):
    sink.answer = unavailable
    outbox.append("event", {})
    sender.start()
    sink.wait(lambda: sink.tries >= 1)

    assert not sender.close(0.05)
    assert outbox.pending() == 1


def test_a_hanging_request_does_not_hold_up_the_end_nor_acknowledge_after_it(
    outbox: Outbox, sender: Sender, sink: ScriptedSink
):
    release, entered = threading.Event(), threading.Event()

    def hang(events: Sequence[Event]) -> None:
        entered.set()
        release.wait(DEADLINE)

    sink.answer = hang
    outbox.append("event", {})
    sender.start()
    assert entered.wait(DEADLINE)

    assert not sender.close(0.01)

    release.set()
    sender._thread.join(DEADLINE)
    assert outbox.pending() == 1


def test_pauses_double_up_to_a_limit():
    backoff = Backoff(first=0.5, limit=30.0)

    assert [backoff.seconds(failures) for failures in (1, 2, 3, 7, 100)] == [0.5, 1.0, 2.0, 30.0, 30.0]
