"""Problems come back as written, one at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from agentfly_lib.data.problems import read_problems, write_problems
from agentfly_lib.errors import ShardError
from agentfly_lib.types import Problem

PROBLEMS = [
    Problem(
        id="a",
        messages=({"role": "user", "content": "你好 \ud800"},),
        columns={"tests": [{"in": 1}, {"out": None}], "n": 1.5, "": {}},
    ),
    Problem(
        id="b", messages=({"role": "user", "content": [{"type": "text", "text": "x"}]},), columns={"tests": "text"}
    ),
    Problem(id="c", messages=({"role": "user", "content": "z"},)),
]


def test_round_trip_and_sequence_behaviour(tmp_path):
    info = write_problems(tmp_path / "p.arrow", PROBLEMS)
    read = read_problems(tmp_path / "p.arrow", info)
    assert list(read) == PROBLEMS
    assert len(read) == 3
    assert (read[-1], read[0:2], read[::-1]) == (PROBLEMS[2], PROBLEMS[:2], PROBLEMS[::-1])
    with pytest.raises(IndexError, match="problem 3 of 3"):
        read[3]


def test_no_problems(tmp_path):
    write_problems(tmp_path / "p.arrow", [])
    assert list(read_problems(tmp_path / "p.arrow")) == []


def test_the_schema_has_text_only(tmp_path):
    write_problems(tmp_path / "p.arrow", PROBLEMS)
    assert set(pa.ipc.open_file(tmp_path / "p.arrow").schema.types) == {pa.string()}


def test_a_damaged_file_is_named(tmp_path):
    info = write_problems(tmp_path / "p.arrow", PROBLEMS)
    (tmp_path / "p.arrow").write_bytes((tmp_path / "p.arrow").read_bytes()[:-1])
    with pytest.raises(ShardError, match=r"p\.arrow is truncated"):
        read_problems(tmp_path / "p.arrow", info)
