"""Server-sent events, wherever the network cuts them."""

from __future__ import annotations

import pytest

from agentfly_lib.inference.events import EventReader

EVENTS = (
    ': a comment\n\ndata: {"text": "Vier 👩‍👧"}\n\n'
    'event: x\nid: 7\ndata:{"a":\ndata: 1}\r\n\r\n\n\n'
    "data: [DONE]\n\ndata: never\n\n"
).encode()
EXPECTED = ['{"text": "Vier 👩‍👧"}', '{"a":\n1}']


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
def test_in_pieces_of_any_size(size):
    reader = EventReader()
    pieces = [EVENTS[start : start + size] for start in range(0, len(EVENTS), size)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EXPECTED
    assert reader.done


def test_cut_in_two_at_every_place():
    for cut in range(len(EVENTS) + 1):
        reader = EventReader()
        assert [*reader.feed(EVENTS[:cut]), *reader.feed(EVENTS[cut:])] == EXPECTED


def test_an_event_that_did_not_end_is_none():
    reader = EventReader()
    assert list(reader.feed(b'data: {"a": 1}\n')) == []
    assert not reader.done
