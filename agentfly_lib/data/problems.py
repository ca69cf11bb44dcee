"""Problems on disk: an Arrow file with the conversation and the free columns as JSON text, so that no value is changed.

Reading is lazy: the file is checked and loaded, a problem is parsed when it is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import pyarrow as pa

from agentfly_lib.store.arrow import TableFile, TableKind, read_table, write_table
from agentfly_lib.types import Message, Problem

__all__ = ["PROBLEMS", "ProblemFile", "content_id", "read_problems", "write_problems"]

PROBLEMS = TableKind(
    name="problems",
    version=1,
    schema=pa.schema([("id", pa.string()), ("messages", pa.string()), ("columns", pa.string())]),
)


def content_id(messages: Sequence[Message], columns: Mapping[str, Any]) -> str:
    """An id that follows from what the problem says."""
    text = json.dumps([list(messages), dict(columns)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ProblemFile(Sequence[Problem]):
    """Problems of a file, parsed one by one as they are asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"problem {index} of {len(self)}")
        identity, messages, columns = (column[index % len(self)].as_py() for column in self._table.columns)
        return Problem(id=identity, messages=tuple(json.loads(messages)), columns=json.loads(columns))


def write_problems(path: Path, problems: Iterable[Problem]) -> TableFile:
    """Writes problems durably. Raises `ShardError` if the file system refuses."""
    rows = [(problem.id, _dump(list(problem.messages)), _dump(dict(problem.columns))) for problem in problems]
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)] or [pa.array([], pa.string())] * 3
    return write_table(path, pa.Table.from_arrays(columns, schema=PROBLEMS.schema), PROBLEMS)


def read_problems(path: Path, expected: TableFile | None = None) -> ProblemFile:
    """Opens a file of problems. Raises `ShardError` naming it if it is damaged."""
    return ProblemFile(read_table(path, PROBLEMS, expected).combine_chunks())


def _dump(value: Any) -> str:
    # ASCII: half a surrogate pair in a JSON source must survive, and UTF-8 cannot carry it.
    return json.dumps(value, separators=(",", ":"))
