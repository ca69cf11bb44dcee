"""Small files of large tables: refused by what they say of themselves, or read in parts."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from agentfly_lib.errors import DataError
from agentfly_lib.rows import unpacked
from agentfly_lib.rows.sources import Row, read_rows

MIB = 2**20


@pytest.fixture
def limits(monkeypatch):
    """Limits a thousandth of the real ones, so that the bombs here are small."""
    monkeypatch.setattr(unpacked, "MAX_PIECE_BYTES", 256 * 1024)
    monkeypatch.setattr(unpacked, "MAX_GROUP_BYTES", MIB)
    monkeypatch.setattr(unpacked, "MAX_LIST_VALUES", 128 * 1024)


def ipc(path, table: pa.Table, *, new=pa.ipc.new_file, compression: str | None = "zstd") -> int:
    with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return path.stat().st_size


@pytest.mark.usefixtures("limits")
class TestParquet:
    def test_a_text_that_is_repeated_is_read_row_by_row(self, tmp_path):
        path = tmp_path / "rows.parquet"
        parquet.write_table(pa.table({"question": ["x" * 200_000] * 300}), path, compression="zstd")
        assert path.stat().st_size < 2000
        allocated = pa.total_allocated_bytes()
        rows = 0
        for row in read_rows(path):
            assert isinstance(row, Row)
            assert (row.number, len(row.values["question"])) == (rows + 1, 200_000)
            rows += 1
            assert pa.total_allocated_bytes() - allocated < 3 * MIB
        assert rows == 300

    def test_a_row_that_is_too_large(self, tmp_path):
        path = tmp_path / "rows.parquet"
        table = pa.table({"question": ["q", "r"], "list": [["a"], ["x" * 100] * 5000]})
        parquet.write_table(table, path, compression="zstd")
        with pytest.raises(DataError, match=r"rows\.parquet row 2 unpacks to \d+ bytes; the limit is 262144"):
            list(read_rows(path))

    def test_lists_that_say_how_long_they_are(self, tmp_path):
        path = tmp_path / "rows.parquet"
        zeros = pa.ListArray.from_arrays(pa.array([0, 200_000], pa.int32()), pa.array(np.zeros(200_000, np.int8)))
        parquet.write_table(pa.table({"a": zeros}), path, compression="zstd")
        with pytest.raises(DataError, match=r"lists of a\.list\.element in row group 1 hold 200000 values"):
            list(read_rows(path))

    def test_a_row_group_that_says_how_large_it_is(self, tmp_path):
        path = tmp_path / "rows.parquet"
        table = pa.table({"a": ["x" * 3 * MIB]})
        parquet.write_table(table, path, compression="zstd")
        with pytest.raises(DataError, match=r"row group 1 unpacks to \d+ bytes; the limit is 1048576"):
            list(read_rows(path))

    def test_dictionaries_and_lists_within_the_limits_are_as_they_were(self, tmp_path):
        path = tmp_path / "rows.parquet"
        rows = [
            {"q": "a", "list": ["x", None], "table": {"k": "v"}, "map": [("m", 1)], "n": 1},
            {"q": None, "list": None, "table": None, "map": None, "n": None},
        ]
        schema = pa.schema(
            [
                ("q", pa.string()),
                ("list", pa.list_(pa.string())),
                ("table", pa.struct([("k", pa.string())])),
                ("map", pa.map_(pa.string(), pa.int8())),
                ("n", pa.int8()),
            ]
        )
        parquet.write_table(pa.Table.from_pylist(rows, schema), path)
        first, second = (row.values for row in read_rows(path) if isinstance(row, Row))
        assert first == {"q": "a", "list": ["x", None], "table": {"k": "v"}, "map": [["m", 1]], "n": 1}
        assert set(second.values()) == {None}


@pytest.mark.usefixtures("limits")
class TestArrow:
    @pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
    @pytest.mark.parametrize("compression", ["zstd", "lz4"])
    def test_compressed_batches_are_measured_before_they_are_unpacked(self, tmp_path, new, compression):
        path = tmp_path / "rows.arrow"
        size = ipc(path, pa.table({"a": np.zeros(10 * MIB, np.int64)}), new=new, compression=compression)
        assert size < MIB
        allocated = pa.total_allocated_bytes()
        with pytest.raises(DataError, match=r"rows\.arrow: message \d unpacks to 83886080 bytes; the limit is 1048576"):
            list(read_rows(path))
        assert pa.total_allocated_bytes() - allocated < MIB

    def test_a_dictionary_too(self, tmp_path):
        path = tmp_path / "rows.arrow"
        column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["x" * 2 * MIB]))
        ipc(path, pa.table({"a": column}))
        with pytest.raises(DataError, match=r"message 2 unpacks to 2097\d+ bytes"):
            list(read_rows(path))

    def test_a_dictionary_whose_values_are_repeated_is_read_in_parts(self, tmp_path):
        path = tmp_path / "rows.arrow"
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), pa.array(["x" * 100_000]))
        ipc(path, pa.table({"a": column}), compression=None)
        assert [len(row.values["a"]) for row in read_rows(path) if isinstance(row, Row)] == [100_000] * 100

    @pytest.mark.parametrize(
        "column",
        [
            pa.RunEndEncodedArray.from_arrays(pa.array([2_000_000_000], pa.int32()), pa.array(["x"])),
            pa.array([["x"]], pa.list_view(pa.string())),
        ],
        ids=["runs", "views"],
    )
    def test_types_that_have_no_size_of_their_own_are_not_read(self, tmp_path, column):
        path = tmp_path / "rows.arrow"
        ipc(path, pa.table({"a": column}), compression=None)
        with pytest.raises(DataError, match=r"column 'a' has the type .*, which is not read"):
            list(read_rows(path))

    def test_nulls_without_end(self, tmp_path):
        path = tmp_path / "rows.arrow"
        ipc(path, pa.table({"a": pa.nulls(10**9)}), compression=None)
        for number, row in enumerate(read_rows(path), start=1):
            assert isinstance(row, Row)
            if number == 100_000:
                break

    def test_a_header_that_lies(self, tmp_path):
        path = tmp_path / "rows.arrow"
        ipc(path, pa.table({"a": ["x"] * 1000}))
        content = bytearray(path.read_bytes())
        for place in range(8, len(content), 7):
            changed = bytes(content[:place]) + bytes([content[place] ^ 0xFF]) + bytes(content[place + 1 :])
            path.write_bytes(changed)
            with contextlib.suppress(DataError):  # anything else would end a run without a word about the file
                list(read_rows(path))


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("agentfly_lib.rows.sources._MAX_LINE_BYTES", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q"}\n' + '{"question": "' + "x" * 2000)
    with pytest.raises(DataError, match=r"rows\.jsonl line 2 is longer than 1000 bytes"):
        list(read_rows(path))
    path.write_text('{"question": "' + "x" * 900 + '"}\n{"question": "q"}')
    assert len(list(read_rows(path))) == 2


def test_a_json_file_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("agentfly_lib.rows.sources._MAX_FILE_BYTES", 1000)
    (tmp_path / "rows.json").write_text('[{"question": "' + "x" * 2000 + '"}]')
    with pytest.raises(DataError, match=r"rows\.json has 2018 bytes; a JSON file of more than 1000 must be JSON Lines"):
        list(read_rows(tmp_path / "rows.json"))
