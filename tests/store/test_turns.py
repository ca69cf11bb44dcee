"""What is free in a rollout comes back as it was, whichever library writes its text; what is no JSON is refused."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import uuid
from typing import Any

import numpy as np
import pytest

from agentfly_lib.store.turns import dump_json, dump_turns, load_json, load_turns
from agentfly_lib.types import FinishReason, Turn


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int = 1


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def turn(message: Any, **more: Any) -> Turn:
    return Turn(message=message, start=1, end=3, sampled=True, finish=FinishReason.LENGTH, policy_version=2, **more)


PLAIN = [
    {"role": "assistant", "content": 'é \N{SNOWMAN} \x00 "quoted" \\ \u2028'},
    {"calls": [{"name": "add", "arguments": {"a": 1, "b": [True, None, -0.0, 1e-320, 1.0, 2**64 - 1, -(2**63)]}}]},
    nested(90),
]
ONLY_FOR_PYTHON = ["half \ud83d", 2**64, -(2**63) - 1, 10**30, math.inf, -math.inf, {"\udc00": 1}, nested(200)]
NO_JSON = [Colour.RED, uuid.UUID(int=1), datetime.date(2026, 1, 1), Point(), {1}, b"x", np.float32(1), circular()]


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_what_orjson_carries_it_writes(value):
    assert dump_json(value, "it").endswith(b"\n")
    assert repr(load_json(dump_json(value, "it"))) == repr(value)


@pytest.mark.parametrize("value", ONLY_FOR_PYTHON, ids=range(len(ONLY_FOR_PYTHON)))
def test_what_it_would_change_or_refuse_is_written_by_python(value):
    for text in (dump_json([value], "it"), dump_json({"deep": [value]}, "it")):
        assert not text.endswith(b"\n")
        assert text.isascii()
    assert load_json(dump_json([value], "it").decode()) == [value]
    (((read,),),) = [load_turns(dump_turns([[turn({"x": value})]], "it"))]
    assert read.message == {"x": value}


@pytest.mark.parametrize("where", [lambda: {"deep": [math.nan]}, lambda: math.nan])
def test_nan_stays_nan(where):
    assert "nan" in repr(load_json(dump_json(where(), "it")))


@pytest.mark.parametrize("field", ["seconds", "reward"])
def test_a_turn_may_have_numbers_that_are_none(field):
    (((read,),),) = [load_turns(dump_turns([[turn({}, **{field: math.nan})]], "it"))]
    assert math.isnan(getattr(read, field))


@pytest.mark.parametrize("value", NO_JSON, ids=range(len(NO_JSON)))
def test_what_is_no_json_is_refused_by_the_name_of_its_owner(value):
    with pytest.raises(TypeError, match="metrics of 0-0/1 holds a value that JSON cannot carry"):
        dump_json({"deep": [value]}, "metrics of 0-0/1")
    for odd in (turn({"x": value}), turn({}, answer=value)):
        with pytest.raises(TypeError, match="0-0/1 holds a value that JSON cannot carry"):
            dump_turns([[odd]], "0-0/1")


def test_a_turn_that_is_read_is_one_that_was_made():
    """It does not pass through the constructor, which therefore may not check anything."""
    assert not hasattr(Turn, "__post_init__")
    written = turn({"role": "assistant"}, seconds=0.5, reward=1.0, answer="4")
    assert load_turns(dump_turns([[written], []], "it")) == [(written,), ()]
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_turns(dump_turns([[written]], "it"))[0][0].start = 7  # type: ignore[misc]


def test_texts_of_earlier_releases_have_neither_reward_nor_answer_nor_a_newline():
    value = dataclasses.asdict(turn({"big": 2**70}))
    del value["reward"], value["answer"]
    assert load_turns(json.dumps([[value]])) == [(turn({"big": 2**70}),)]


@pytest.mark.parametrize("missing", ["message", "start", "seconds"])
def test_a_turn_that_lacks_something_else_is_none(missing):
    value = dataclasses.asdict(turn({}))
    del value[missing]
    with pytest.raises(KeyError, match=missing):
        load_turns(json.dumps([[value]]) + "\n")
