"""Rows arrive as written, whatever the file format, and unreadable ones are named."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import struct

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from agentfly_lib.errors import DataError
from agentfly_lib.rows.sources import Row, RowFault, read_rows

ROWS = [
    {"question": "2 + 2?", "answer": "4", "tests": [{"in": 1}, {"out": "x"}]},
    {"question": "Größe 你好 🙂?", "answer": "5", "extra": None},
]


def values(path):
    return [row.values for row in read_rows(path)]


def test_json_and_jsonl_keep_objects_of_different_shapes_apart(tmp_path, jsonl):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS), encoding="utf-8")
    assert values(tmp_path / "rows.json") == ROWS
    assert values(jsonl(ROWS)) == ROWS


def test_lines_are_counted_as_an_editor_does(jsonl):
    found = list(read_rows(jsonl([ROWS[0], "", ROWS[1]])))
    assert [row.where.rsplit(" ", 2)[1:] for row in found] == [["line", "1"], ["line", "3"]]


def test_a_byte_order_mark_is_no_content(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "q"}\n')
    assert values(path) == [{"question": "q"}]
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xef\xbb\xbfquestion\nq\n")
    assert values(path) == [{"question": "q"}]


def test_csv_cells_are_text_and_may_span_lines(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('question,answer\n"a, ""b""\nc",04\nd,5\n')
    rows = list(read_rows(path))
    assert [row.values for row in rows] == [{"question": 'a, "b"\nc', "answer": "04"}, {"question": "d", "answer": "5"}]
    assert [row.number for row in rows] == [2, 4]


def test_tsv(tmp_path):
    (tmp_path / "rows.tsv").write_text("question\tanswer\na,b\t1\n")
    assert values(tmp_path / "rows.tsv") == [{"question": "a,b", "answer": "1"}]


@pytest.mark.parametrize("layout", ["parquet", "arrow-file", "arrow-stream", "feather"])
def test_typed_tables_become_plain_values(tmp_path, layout):
    table = pa.table(
        {
            "question": ["q"],
            "when": [datetime.date(2025, 1, 2)],
            "price": [decimal.Decimal("1.50")],
            "score": [float("nan")],
            "list": [[{"a": 1}]],
        }
    )
    path = tmp_path / f"rows.{layout.split('-')[0]}"
    if layout == "parquet":
        parquet.write_table(table, path)
    elif layout == "feather":
        feather.write_feather(table, path)
    else:
        new = pa.ipc.new_file if layout == "arrow-file" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table)
    assert values(path) == [{"question": "q", "when": "2025-01-02", "price": "1.50", "score": None, "list": [{"a": 1}]}]


def test_a_typed_value_that_json_does_not_know_is_a_fault_of_its_row(tmp_path):
    parquet.write_table(pa.table({"question": ["q", "r"], "blob": [None, b"\x00"]}), tmp_path / "rows.parquet")
    good, bad = read_rows(tmp_path / "rows.parquet")
    assert isinstance(good, Row)
    assert str(bad).endswith("rows.parquet row 2: column 'blob' holds bytes; expected text, numbers, lists or objects")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "q"', r"rows\.jsonl line 2: not valid JSON"),
        ("[1, 2]", r"rows\.jsonl line 2: expected a JSON object, got a list"),
        ("null", r"rows\.jsonl line 2: expected a JSON object, got null"),
        ("[" * 100_000, r"rows\.jsonl line 2: (nested too deeply|not valid JSON)"),
        ('{"x": ' + "9" * 5000 + "}", r"rows\.jsonl line 2: holds a number that is too long"),
    ],
)
def test_an_unreadable_line_is_a_fault_and_the_rest_is_read(jsonl, line, message):
    first, fault, last = read_rows(jsonl([ROWS[0], line, ROWS[1]]))
    assert isinstance(fault, RowFault)
    assert re.search(message, str(fault))
    assert (first.values, last.values) == (ROWS[0], ROWS[1])


def test_a_line_that_is_not_utf8(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'{"question": "caf\xe9"}\n')
    (fault,) = read_rows(tmp_path / "rows.jsonl")
    assert "line 1: not UTF-8 text (byte 18 of the line)" in str(fault)


def test_a_csv_row_with_too_few_cells(tmp_path):
    (tmp_path / "rows.csv").write_text("question,answer\na,1\nb\n")
    _, fault = read_rows(tmp_path / "rows.csv")
    assert str(fault).endswith("rows.csv line 3: 1 cells, expected 2 (question, answer)")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.json", b"[1,\n 2,,]", r"rows\.json line 2 column 4: not valid JSON"),
        ("rows.json", b'{"question": "q"}\n{"question": "r"}', "is it JSON Lines"),
        ("rows.json", b'{"data": []}', "expected a JSON list of rows, got an object"),
        ("rows.json", b'["\xe9"]', r"rows\.json is not UTF-8 text \(byte 3\)"),
        ("rows.json", b"[" * 100_000, r"rows\.json is nested too deeply"),
        ("rows.json", b"[" + b"9" * 5000 + b"]", r"rows\.json holds a number that is too long"),
        ("rows.csv", b"a,a\n1,2\n", "the column 'a' appears twice"),
        ("rows.csv", b'a\n"open\n', r"rows\.csv line 2: not valid CSV"),
        ("rows.parquet", b"not parquet at all", r"rows\.parquet is not a readable Parquet file"),
        ("rows.arrow", b"not arrow at all, but long enough", r"rows\.arrow is not a readable Arrow file"),
        ("rows.txt", b"", r"rows\.txt: the suffix \.txt is not known; use one of \.json"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path / name))


def test_an_arrow_file_whose_offsets_point_outside_is_refused(tmp_path):
    table = pa.table({"question": ["first", "second"]})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    content = (tmp_path / "rows.arrow").read_bytes()
    offsets = struct.pack("<3i", 0, 5, 11)
    assert content.count(offsets) == 1
    (tmp_path / "rows.arrow").write_bytes(content.replace(offsets, struct.pack("<3i", 0, 1, 50_000_000)))
    with pytest.raises(DataError, match=r"rows\.arrow is not a readable Arrow file"):
        list(read_rows(tmp_path / "rows.arrow"))


def test_a_date_that_python_cannot_hold(tmp_path):
    table = pa.table({"question": ["q"], "when": pa.array([2**62], pa.timestamp("s"))})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"rows\.arrow rows 1 to 1 hold a value that cannot be read"):
        list(read_rows(tmp_path / "rows.arrow"))


def test_a_missing_file_and_a_directory(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl does not exist"):
        list(read_rows(tmp_path / "none.jsonl"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"folder\.jsonl is not a file"):
        list(read_rows(tmp_path / "folder.jsonl"))
