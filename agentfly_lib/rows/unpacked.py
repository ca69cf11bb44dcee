"""How large a table becomes in memory, known before it is: a file of a few hundred bytes may unpack to gigabytes.

Compression, dictionaries and runs all make small files of large tables. What a Parquet or Arrow file says of its pieces
is looked at before they are read, and each piece that was read before it becomes Python objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agentfly_lib.errors import DataError

__all__ = ["MAX_PIECE_BYTES", "check_messages", "check_row_groups", "pieces", "string_columns", "unpacked_bytes"]

MAX_PIECE_BYTES = 256 * 2**20
"""Of rows that become Python objects together, and so of a single row."""
MAX_GROUP_BYTES = 2**30
"""Of what a file keeps in one piece: a row group, a record batch."""
MAX_LIST_VALUES = 128 * 2**20
"""Of the lists of one column in one row group: all of them could stand in one row."""
_SMALLEST = 8
"""Bytes that a value takes at least, whatever it is."""
_MESSAGE_KINDS = {2: "dictionary", 3: "record batch"}


def pieces(batch: pa.RecordBatch, where: str, first: int) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in parts that are small enough to become Python objects. `first` is its first row's number.

    Raises `DataError` for a row that is too large, or a column of a type that is not read.
    """
    size = sum(unpacked_bytes(column, f"{where}: column {name!r}") for name, column in _columns(batch))
    if size <= MAX_PIECE_BYTES:
        yield batch
    elif batch.num_rows == 1:
        raise DataError(f"{where} row {first} unpacks to {size} bytes; the limit is {MAX_PIECE_BYTES}")
    else:
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half), where, first)
        yield from pieces(batch.slice(half), where, first + half)


def unpacked_bytes(array: Any, what: str) -> int:
    """About how many bytes the values take when each stands by itself. Raises `DataError` naming `what` for types that
    we do not read.
    """
    kind = array.type
    least = _SMALLEST * len(array)
    if pa.types.is_dictionary(kind):
        indices = array.indices.drop_null().to_numpy(zero_copy_only=False)
        return least + int(_sizes(array.dictionary, what)[indices].sum())
    if pa.types.is_struct(kind):
        return least + sum(unpacked_bytes(field, what) for field in array.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return least + unpacked_bytes(array.flatten(), what)
    if pa.types.is_map(kind):
        begin, end = (array.offsets[0].as_py(), array.offsets[len(array)].as_py()) if len(array) else (0, 0)
        return least + sum(unpacked_bytes(part.slice(begin, end - begin), what) for part in (array.keys, array.items))
    if isinstance(array, pa.ExtensionArray):
        return unpacked_bytes(array.storage, what)
    if _is_plain(kind):
        return least + array.nbytes
    raise DataError(f"{what} has the type {kind}, which is not read; write it as text, numbers, lists or objects")


def string_columns(file: Any) -> list[str]:
    """Columns of a `ParquetFile` that are to be read as dictionaries, so that a text that is repeated stands once."""
    columns = (file.schema.column(index) for index in range(file.metadata.num_columns))
    return [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in ("STRING", "JSON", "ENUM", "NONE")
    ]


def check_row_groups(file: Any, where: str) -> None:
    """Raises `DataError` if a row group of a `ParquetFile` says that it is too large to be read."""
    repeated = [file.schema.column(i).max_repetition_level > 0 for i in range(file.metadata.num_columns)]
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        if group.total_byte_size > MAX_GROUP_BYTES:
            raise _too_large(f"{where}: row group {number + 1}", group.total_byte_size, "row groups")
        for index in range(group.num_columns):
            column = group.column(index)
            if repeated[index] and column.num_values > MAX_LIST_VALUES:
                raise DataError(
                    f"{where}: the lists of {column.path_in_schema} in row group {number + 1} hold {column.num_values} "
                    f"values; the limit is {MAX_LIST_VALUES}; write the file in smaller row groups"
                )


def check_messages(source: pa.NativeFile, where: str) -> None:
    """Raises `DataError` if a batch of an Arrow stream unpacks to too much. Reads to the end of the stream."""
    reader = pa.ipc.MessageReader.open_stream(source)
    for number, message in enumerate(reader, start=1):
        size = _message_bytes(message)
        if size > MAX_GROUP_BYTES:
            raise _too_large(f"{where}: message {number}", size, "record batches")


def _too_large(what: str, size: int, unit: str) -> DataError:
    return DataError(f"{what} unpacks to {size} bytes; the limit is {MAX_GROUP_BYTES}; write it in smaller {unit}")


def _columns(batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    return zip(batch.schema.names, batch.columns, strict=True)


def _sizes(array: Any, what: str) -> npt.NDArray[np.int64]:
    """Bytes of each value of a dictionary; at most, for values that are lists or structs."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_binary(kind):
        lengths = pc.call_function("binary_length", [array]).fill_null(0)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.full(len(array), unpacked_bytes(array, what), np.int64)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_plain(kind: pa.DataType) -> bool:
    return (
        pa.types.is_null(kind)
        or pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
        or _is_binary(kind)
    )


def _message_bytes(message: Any) -> int:
    """What the buffers of a message unpack to: each compressed one begins with its length.

    The message's header is a flatbuffer (https://arrow.apache.org/docs/format/Columnar.html, Message.fbs).
    """
    try:
        header = _Table.root(bytes(message.metadata))
        kind = header.byte(1)
        if kind not in _MESSAGE_KINDS:
            return 0
        batch = header.table(2)
        if kind == 2 and batch is not None:
            batch = batch.table(1)
        if batch is None or batch.table(3) is None:
            return 0 if message.body is None else message.body.size  # not compressed
        body = memoryview(message.body) if message.body is not None else memoryview(b"")
        total = 0
        for offset, length in batch.pairs(2):
            if length >= 8:
                (size,) = struct.unpack_from("<q", body, offset)
                total += length - 8 if size == -1 else max(0, size)
        return total
    except struct.error as error:
        raise pa.ArrowInvalid(f"its header cannot be read: {error}") from error


class _Table:
    """A table of a flatbuffer, its fields by number."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def byte(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else struct.unpack_from("<B", self._data, place)[0]

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        place = self._place(field)
        if place is None:
            return []
        start = place + struct.unpack_from("<I", self._data, place)[0]
        (count,) = struct.unpack_from("<I", self._data, start)
        if start + 4 + 16 * count > len(self._data):
            raise struct.error("a vector that is longer than the header")
        return list(struct.iter_unpack("<qq", self._data[start + 4 : start + 4 + 16 * count]))

    def _place(self, field: int) -> int | None:
        (back,) = struct.unpack_from("<i", self._data, self._position)
        vtable = self._position - back
        if vtable < 0:
            raise struct.error("a table of fields that lies before the header")
        (size,) = struct.unpack_from("<H", self._data, vtable)
        if 4 + 2 * field >= size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, vtable + 4 + 2 * field)
        return self._position + offset if offset else None
