"""Arrow IPC files with a schema version, a row count and a checksum: how all our tables reach the disk and come back.

The schema's metadata names the kind of table, its version and its rows; the SHA-256 of the whole file is kept by the
writer (in a manifest). A reader that is given it proves the file byte for byte; without it, kind, version, rows and
Arrow's own validation are checked. Every fault is a `ShardError` naming the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from agentfly_lib.errors import ShardError
from agentfly_lib.store.atomic import write_bytes

__all__ = ["READING", "REDO", "TableFile", "TableKind", "file_sha256", "read_table", "table_metadata", "write_table"]

READING = pa.ipc.IpcReadOptions(use_threads=False)
"""Arrow's threads take more processor time than they save: a table has many small buffers."""
_PREFIX = "agentfly."
REDO = "restore it from a copy, or redo its stage (docs/operating.md, A damaged file)"
"""What to do about a damaged file; which folders have to go with it depends on where it lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """What a table is and how it is laid out; a file of another kind or version is refused."""

    name: str
    version: int
    schema: pa.Schema
    earlier: Mapping[int, pa.Schema] = field(default_factory=dict)
    """Versions that are not written any more, but still read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """What a written table can be recognised by."""

    rows: int
    sha256: str
    bytes: int


def write_table(
    path: Path,
    table: pa.Table,
    kind: TableKind,
    metadata: Mapping[str, str] | None = None,
    *,
    batch_rows: int | None = None,
) -> TableFile:
    """Writes a table (LZ4, which takes a third of zstd's time) atomically and durably. Raises `ShardError`.

    metadata: is kept in the file.
    batch_rows: rows of one record batch, which is what a reader of single rows has to decompress; all in one if unset.
    """
    header = {"kind": kind.name, "version": str(kind.version), "rows": str(table.num_rows), **(metadata or {})}
    table = table.replace_schema_metadata({_PREFIX + key: value for key, value in header.items()})
    if not table.schema.equals(kind.schema, check_metadata=False):
        raise TypeError(f"a table of {kind.name} must have the columns {kind.schema.names} of its schema")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    ) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    data = memoryview(sink.getvalue())
    write_bytes(path, data)
    return TableFile(rows=table.num_rows, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def read_table(path: Path, kind: TableKind, expected: TableFile | None = None) -> pa.Table:
    """Reads and checks a table, in the columns of the version that it was written in.

    Raises `ShardError` naming the file if it is missing, truncated, of another kind or version, or if its checksum or
    row count is not the expected one.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ShardError(f"{path} is missing; {REDO}") from error
    except OSError as error:
        raise ShardError(f"cannot read {path}: {error.strerror}") from error
    if expected is not None:
        _check_bytes(path, data, expected)
    try:
        # Opening the footer can fail on garbage in many ways; Arrow reports all of them as one of these two.
        table = pa.ipc.open_file(pa.BufferReader(data), options=READING).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise ShardError(f"{path} is truncated or not an Arrow file ({error}); {REDO}") from error
    _check_header(path, table, kind)
    if expected is not None and table.num_rows != expected.rows:
        raise ShardError(f"{path} has {table.num_rows} rows where its manifest says {expected.rows}; {REDO}")
    return table


def table_metadata(table: pa.Table) -> dict[str, str]:
    """The metadata that was given to `write_table`, and `kind`, `version`, `rows`."""
    return {
        key.decode().removeprefix(_PREFIX): value.decode()
        for key, value in (table.schema.metadata or {}).items()
        if key.startswith(_PREFIX.encode())
    }


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal. Raises `ShardError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ShardError(f"cannot read {path}: {error.strerror}") from error


def _check_bytes(path: Path, data: bytes, expected: TableFile) -> None:
    if len(data) != expected.bytes:
        raise ShardError(
            f"{path} is truncated or changed: {len(data)} bytes where its manifest says {expected.bytes}; {REDO}"
        )
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected.sha256:
        raise ShardError(
            f"{path} does not match its checksum: SHA-256 {digest[:12]}... where its manifest says "
            f"{expected.sha256[:12]}...; {REDO}"
        )


def _check_header(path: Path, table: pa.Table, kind: TableKind) -> None:
    header = table_metadata(table)
    if header.get("kind") != kind.name:
        raise ShardError(
            f"{path} holds {header.get('kind') or 'something not written by agentfly'}, expected {kind.name}"
        )
    schemas = {str(version): schema for version, schema in {**kind.earlier, kind.version: kind.schema}.items()}
    version = header.get("version", "none")
    if version not in schemas:
        raise ShardError(
            f"{path} has version {version} of the {kind.name} schema, this program reads "
            f"{'version' if len(schemas) == 1 else 'versions'} {', '.join(schemas)}; use the release that wrote it, or "
            f"start a new run"
        )
    if header.get("rows") != str(table.num_rows):
        raise ShardError(f"{path} has {table.num_rows} rows where its header says {header.get('rows')}; {REDO}")
    if not table.schema.equals(schemas[version], check_metadata=False):
        raise ShardError(f"{path} does not have the columns of {kind.name} version {version}; {REDO}")
