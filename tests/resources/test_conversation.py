"""What comes back from a sandbox, when it is not what a keeper says."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from agentfly_lib.resources.conversation import Conversation, ending

ANSWER = {
    "id": 1, "stdout": "", "stderr": "", "cut_stdout": 0, "cut_stderr": 0,
    "exit": 0, "timed_out": False, "reply": None, "fresh": True,
}  # fmt: skip


def frame(message: Any) -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">I", len(data)) + data


async def test_an_answer_belongs_to_its_request():
    conversation = Conversation(lambda _: None)
    conversation.feed(frame({"ready": True}))
    asked = asyncio.ensure_future(conversation.ask({"op": "run"}, 1.0))
    await asyncio.sleep(0)
    conversation.feed(frame(ANSWER | {"id": 7}) + frame(ANSWER | {"stdout": "42"}))
    assert (await asked).stdout == "42"


@pytest.mark.parametrize(
    "message",
    [
        {"ready": True},
        {"ready": False},
        [],
        3,
        {},
        b"\xff",
        b"[" * 100_000,
        {"id": [1]},
        {"id": 1, "error": 3},
        {"id": 1},
        {name: value for name, value in ANSWER.items() if name != "stdout"},
        ANSWER | {"stdout": 3},
        ANSWER | {"exit": "0"},
    ],
    ids=lambda message: str(message)[:40],
)
async def test_what_no_keeper_says_is_the_end(message: Any):
    """Otherwise whoever listens would die of it, and every later command would wait for its whole limit."""
    conversation = Conversation(lambda _: None)
    conversation.feed(frame({"ready": True}))
    with pytest.raises(ValueError, match=r".") as caught:
        conversation.feed(frame(message))
    assert not isinstance(caught.value, asyncio.InvalidStateError)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (None, "ended with exit code None"),
        (-9, "was killed by SIGKILL"),
        (-40, "was killed by signal 40"),  # a real-time signal, which has no name
        (-(10**6), "was killed by signal 1000000"),
    ],
)
def test_any_ending_has_words(code: int | None, words: str):
    assert ending(code) == words
