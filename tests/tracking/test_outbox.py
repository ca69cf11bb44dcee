"""The queue survives deaths, keeps order, and never blocks on what is broken in it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from agentfly_lib.errors import RunLockedError
from agentfly_lib.tracking.outbox import Outbox


@pytest.fixture
def outbox(tmp_path: Path):
    opened = Outbox(tmp_path)
    yield opened
    opened.close()


def test_events_come_out_in_order_with_their_numbers(outbox: Outbox):
    for step in range(3):
        assert outbox.append("metrics", {"step": step}) == step + 1

    events = outbox.read(10)

    assert [event.sequence for event in events] == [1, 2, 3]
    assert [event.payload["step"] for event in events] == [0, 1, 2]
    assert outbox.pending() == 3


def test_reading_goes_on_behind_what_was_acknowledged(outbox: Outbox):
    for step in range(5):
        outbox.append("metrics", {"step": step})

    outbox.acknowledge(outbox.read(2)[-1])

    assert [event.sequence for event in outbox.read(2)] == [3, 4]
    assert outbox.pending() == 3


def test_reopening_goes_on_with_numbers_and_with_what_is_left(tmp_path: Path):
    first = Outbox(tmp_path)
    first.append("a", {})
    first.append("b", {})
    first.acknowledge(first.read(1)[0])
    first.close()

    second = Outbox(tmp_path)

    assert second.append("c", {}) == 3
    assert [event.kind for event in second.read(10)] == ["b", "c"]
    assert second.pending() == 2
    second.close()


def test_what_is_delivered_is_cut_off_and_numbers_go_on(tmp_path: Path):
    outbox = Outbox(tmp_path)
    outbox.append("a", {"text": "x" * 1000})
    outbox.acknowledge(outbox.read(1)[0])
    whole = (tmp_path / "outbox.jsonl").read_bytes()
    outbox.close()
    assert (tmp_path / "outbox.jsonl").stat().st_size == 0

    (tmp_path / "outbox.jsonl").write_bytes(whole)  # as if it had been killed before the file was cut
    again = Outbox(tmp_path)
    assert (again.pending(), again.read(1)) == (0, [])
    assert again.append("b", {}) == 2
    assert [event.kind for event in again.read(10)] == ["b"]
    again.close()


def test_a_long_run_keeps_no_more_than_it_must(outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentfly_lib.tracking.outbox._LARGE_BYTES", 100)
    outbox.append("a", {"text": "x" * 100})
    outbox.append("b", {})
    outbox.acknowledge(outbox.read(1)[0])
    assert [event.kind for event in outbox.read(10)] == ["b"], "what is not delivered stays"
    outbox.acknowledge(outbox.read(1)[0])
    assert (tmp_path / "outbox.jsonl").stat().st_size == 0
    assert outbox.append("c", {}) == 3
    assert [event.kind for event in outbox.read(10)] == ["c"]


@pytest.mark.parametrize(
    "torn", [b"{", b'{"sequence":2,"time_ms":1,"kind":"b","payl', b'{"sequence":2}' + b" " * 200_000]
)
def test_a_torn_last_line_is_dropped_and_its_number_used_again(tmp_path: Path, torn: bytes):
    first = Outbox(tmp_path)
    first.append("a", {"text": "x" * 100_000})
    first.close()
    with (tmp_path / "outbox.jsonl").open("ab") as file:
        file.write(torn)

    second = Outbox(tmp_path)

    assert second.append("b", {}) == 2
    assert [event.kind for event in second.read(10)] == ["a", "b"]
    second.close()


def test_a_file_with_nothing_but_a_torn_line_is_an_empty_queue(tmp_path: Path):
    (tmp_path / "outbox.jsonl").write_bytes(b'{"sequence":1,')

    outbox = Outbox(tmp_path)

    assert outbox.read(10) == []
    assert outbox.append("a", {}) == 1
    outbox.close()


def test_an_unreadable_line_in_the_middle_is_passed_over(tmp_path: Path):
    first = Outbox(tmp_path)
    first.append("a", {})
    first.close()
    with (tmp_path / "outbox.jsonl").open("ab") as file:
        file.write(b"\x00\x00 garbage\n")
    second = Outbox(tmp_path)
    second.append("b", {})

    assert [event.kind for event in second.read(10)] == ["a", "b"]
    second.close()


@pytest.mark.parametrize("broken", ["{", '{"offset": -1, "sequence": 1}'])
def test_a_broken_acknowledgement_delivers_again_rather_than_never(tmp_path: Path, broken: str):
    first = Outbox(tmp_path)
    first.append("a", {})
    first.append("b", {})
    first.acknowledge(first.read(1)[0])
    first.close()
    (tmp_path / "acknowledged.json").write_text(broken)

    second = Outbox(tmp_path)

    assert [event.kind for event in second.read(10)] == ["a", "b"]
    second.close()


def test_one_queue_has_one_tracker(tmp_path: Path, outbox: Outbox):
    with pytest.raises(RunLockedError, match="in use by another tracker"):
        Outbox(tmp_path)


def test_many_threads_append_without_mixing(outbox: Outbox):
    def append(name: int) -> None:
        for index in range(50):
            outbox.append("metrics", {"name": name, "index": index})

    threads = [threading.Thread(target=append, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    events = outbox.read(1000)
    assert [event.sequence for event in events] == list(range(1, 401))
    for name in range(8):
        mine = [event.payload["index"] for event in events if event.payload["name"] == name]
        assert mine == list(range(50))


def test_a_full_disk_costs_the_event_and_leaves_the_queue_whole(outbox: Outbox, monkeypatch: pytest.MonkeyPatch):
    outbox.append("a", {})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(OSError, match="no space"):
        outbox.append("lost", {})
    monkeypatch.undo()

    outbox.append("b", {})

    assert [(event.sequence, event.kind) for event in outbox.read(10)] == [(1, "a"), (2, "b")]


def _append_until_killed(directory: Path, started: Event) -> None:
    outbox = Outbox(directory)
    for step in range(1_000_000):
        outbox.append("metrics", {"step": step, "values": {"train/reward/mean": 0.5}})
        if step == 100:
            started.set()


def test_kill_9_loses_nothing_that_was_appended(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=_append_until_killed, args=(tmp_path, started))
    process.start()
    assert started.wait(60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)

    outbox = Outbox(tmp_path)

    events = outbox.read(10_000_000)
    assert len(events) > 100
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert outbox.append("next", {}) == len(events) + 1
    outbox.close()
