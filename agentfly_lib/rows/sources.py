"""Rows out of files and hub datasets, one at a time, each with the place it came from.

JSON, JSONL and CSV are read by Python itself, so that values arrive as written: no null keys are added to objects of
different shapes. Parquet and Arrow values become plain JSON values. A row that cannot be read is a `RowFault` among
the rows, so that all of them can be reported together; a file that cannot be read at all is a `DataError`.

Files are read in pieces whose size in memory is bounded, whatever a small file unpacks to: a line, a row or a block of
rows beyond that is refused.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import decimal
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentfly_lib.errors import DataError
from agentfly_lib.rows.picture_text import IMAGE_COLUMNS, pictures_as_text
from agentfly_lib.rows.unpacked import check_messages, check_row_groups, pieces, string_columns

__all__ = ["SUFFIXES", "Row", "RowFault", "plain_value", "read_jsonl", "read_rows"]

_MAX_CELL_BYTES = 128 * 2**20
_MAX_LINE_BYTES = 128 * 2**20
_MAX_FILE_BYTES = 2 * 2**30
"""Of a JSON file, which is read whole."""
_BATCH_ROWS = 512
_ARROW_MAGIC, _ARROW_FILE_START = b"ARROW1", 8
"""The file format is the stream format between two of these, the first one padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as it was found."""

    source: str
    """The file, or the hub dataset and split."""
    unit: str
    """What `number` counts: `line` in text files, `row` elsewhere."""
    number: int
    """From 1."""
    values: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.source} {self.unit} {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """A row that cannot be used."""

    where: str
    message: str
    """What is wrong and what is expected."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def read_rows(path: Path) -> Iterator[Row | RowFault]:
    """Rows of a file; its suffix says how it is read (see `SUFFIXES`). Raises `DataError` naming the file."""
    reader = SUFFIXES.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: the suffix {path.suffix or '(none)'} is not known; use one of {', '.join(SUFFIXES)}")
    if not path.exists():
        raise DataError(f"{path} does not exist (looked from {Path.cwd()}); check the path in the recipe's [data]")
    if not path.is_file():
        raise DataError(f"{path} is not a file; give the path of one file")
    try:
        yield from reader(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_jsonl(path: Path) -> Iterator[Row | RowFault]:
    """One JSON object per line; empty lines are skipped but counted."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > _MAX_LINE_BYTES:
                raise DataError(
                    f"{path} line {number} is longer than {_MAX_LINE_BYTES} bytes; is it one JSON object per line?"
                )
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if text.strip():
                yield _json_row(path, number, text)


def plain_value(value: Any) -> Any:
    """A value out of Arrow as JSON knows it: dates become ISO text, decimals digits, NaN and infinities null.

    Raises `TypeError` for anything else.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain_value(each) for key, each in value.items()}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _json_row(path: Path, number: int, line: bytes) -> Row | RowFault:
    where = f"{path} line {number}"
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return RowFault(where=where, message=f"not UTF-8 text (byte {error.start + 1} of the line)")
    except json.JSONDecodeError as error:
        return RowFault(
            where=where, message=f"not valid JSON ({error.msg} at column {error.colno}); expected one object"
        )
    except RecursionError:
        return RowFault(where=where, message="nested too deeply to be read")
    except ValueError:
        return RowFault(where=where, message="holds a number that is too long to be read")
    if not isinstance(values, dict):
        return RowFault(where=where, message=f"expected a JSON object, got {_type_name(values)}")
    return Row(source=str(path), unit="line", number=number, values=values)


def _read_json(path: Path) -> Iterator[Row | RowFault]:
    if (size := path.stat().st_size) > _MAX_FILE_BYTES:
        raise DataError(
            f"{path} has {size} bytes; a JSON file of more than {_MAX_FILE_BYTES} must be JSON Lines (.jsonl), which "
            "is read line by line"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start + 1})") from error
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; is it JSON Lines? then name it .jsonl" if text.lstrip().startswith("{") else ""
        raise DataError(
            f"{path} line {error.lineno} column {error.colno}: not valid JSON ({error.msg}){hint}"
        ) from error
    except RecursionError as error:
        raise DataError(f"{path} is nested too deeply to be read") from error
    except ValueError as error:
        raise DataError(f"{path} holds a number that is too long to be read") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a JSON list of rows, got {_type_name(rows)}")
    for number, values in enumerate(rows, start=1):
        if isinstance(values, dict):
            yield Row(source=str(path), unit="row", number=number, values=values)
        else:
            yield RowFault(where=f"{path} row {number}", message=f"expected a JSON object, got {_type_name(values)}")


def _read_csv(path: Path) -> Iterator[Row | RowFault]:
    csv.field_size_limit(_MAX_CELL_BYTES)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(reader, None)
            if header is None:
                return
            doubled = sorted({name for name in header if header.count(name) > 1})
            if doubled:
                raise DataError(f"{path} line 1: the column {doubled[0]!r} appears twice in the header")
            line = reader.line_num
            for cells in reader:
                # A cell may span lines: a row is known by its first one.
                number, line = line + 1, reader.line_num
                if not cells:
                    continue
                if len(cells) == len(header):
                    values = dict(zip(header, cells, strict=True))
                    yield Row(source=str(path), unit="line", number=number, values=values)
                else:
                    message = f"{len(cells)} cells, expected {len(header)} ({', '.join(header)})"
                    yield RowFault(where=f"{path} line {number}", message=message)
        except csv.Error as error:
            raise DataError(f"{path} line {reader.line_num}: not valid CSV ({error})") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text (after line {reader.line_num})") from error


def _read_parquet(path: Path) -> Iterator[Row | RowFault]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as plain:
            check_row_groups(plain, str(path))
            names = string_columns(plain)
        with parquet.ParquetFile(path, read_dictionary=names) as file:
            yield from _batch_rows(path, file.iter_batches(batch_size=_BATCH_ROWS))
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def _read_arrow(path: Path) -> Iterator[Row | RowFault]:
    # Two layouts share the suffix: the file format, and the stream format that `datasets` writes.
    try:
        with pa.memory_map(str(path)) as source:
            start = _ARROW_FILE_START if source.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC else 0
            source.seek(start)
            check_messages(source, str(path))
            source.seek(0)
            if start:
                file = pa.ipc.open_file(source)
                batches = (file.get_batch(index) for index in range(file.num_record_batches))
            else:
                batches = iter(pa.ipc.open_stream(source))
            yield from _batch_rows(path, batches)
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable Arrow file: {error}") from error


def _batch_rows(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[Row | RowFault]:
    number = 0
    for batch in batches:
        batch.validate(full=True)  # offsets that point outside the file would be followed
        for piece in pieces(batch, str(path), number + 1):
            try:
                rows = piece.to_pylist()
            except (ValueError, OverflowError) as error:
                last = number + piece.num_rows
                raise DataError(
                    f"{path} rows {number + 1} to {last} hold a value that cannot be read: {error}"
                ) from error
            for values in rows:
                number += 1
                yield plain_row(str(path), number, values)


def plain_row(source: str, number: int, values: dict[str, Any]) -> Row | RowFault:
    """A row of a typed table, its values made plain; a fault names the column that cannot be."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        try:
            plain[name] = plain_value(pictures_as_text(value) if name in IMAGE_COLUMNS else value)
        except TypeError:
            message = f"column {name!r} holds {_type_name(value)}; expected text, numbers, lists or objects"
            return RowFault(where=f"{source} row {number}", message=message)
    return Row(source=source, unit="row", number=number, values=plain)


def _type_name(value: Any) -> str:
    names = {"dict": "an object", "list": "a list", "str": "text", "int": "a number", "float": "a number"}
    names |= {"bool": "a truth value", "NoneType": "null", "bytes": "bytes"}
    return names.get(type(value).__name__, f"a value of type {type(value).__name__}")


SUFFIXES: dict[str, Callable[[Path], Iterator[Row | RowFault]]] = {
    ".json": _read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
}
"""How each suffix is read."""
