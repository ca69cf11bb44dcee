"""Parts: the Arrow files that hold trajectories, one row each, under one fixed schema.

Token columns are built from numpy values and offsets, so their cost is that of copying memory. A trajectory's segments
lie end to end in its row and `segment_lengths` tells them apart. What has no fixed shape is JSON text (`turns`,
`problem`, `metrics`, `failure`). Values come back bit for bit: NaN log-probs, -0.0, empty segments, any text.
Rewards are not here but beside the part (`scores.py`); a part that is read has `reward=None` everywhere.

A picture stands in a part once, as the encoded file, in the first row that has it; every row names its pictures by
their SHA-256. Version 1 had neither pictures nor versions of tokens; it is read as what it holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from agentfly_lib.errors import ShardError
from agentfly_lib.store.arrow import READING, TableFile, TableKind, file_sha256, read_table, table_metadata, write_table
from agentfly_lib.store.turns import (
    dump_failure,
    dump_json,
    dump_problem,
    dump_turns,
    load_failure,
    load_json,
    load_problem,
    load_turns,
)
from agentfly_lib.types import ImageSpan, Problem, Segment, StopReason, Trajectory, TrajectoryGroup, Turn

__all__ = ["ROLLOUTS", "PartIndex", "PartInfo", "PartRows", "inspect_part", "read_index", "read_part", "write_part"]

_VERSION_1 = pa.schema(
    [
        ("id", pa.string()),
        ("problem_id", pa.string()),
        ("group_id", pa.string()),
        ("chain", pa.int32()),
        ("step", pa.int32()),
        ("attempt", pa.int32()),
        ("policy_version", pa.int32()),  # oldest that sampled one of its turns, -1 if none did
        ("stop", pa.string()),
        ("failure_kind", pa.string()),  # for queries; `failure` is what is read back
        ("failure", pa.string()),  # JSON
        ("env_reward", pa.float64()),
        ("metrics", pa.string()),  # JSON
        ("segment_lengths", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("turns", pa.string()),  # JSON, a list per segment
        ("problem", pa.dictionary(pa.int32(), pa.string())),  # JSON, once per group
    ]
)
_SPAN = pa.struct(
    [
        ("segment", pa.int32()),
        ("digest", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("frames", pa.int32()),
        ("rows", pa.int32()),
        ("columns", pa.int32()),
    ]
)
# What is new stands at the end, so that a column of version 1 has the same place in both.
_VERSION_2 = pa.schema(
    [
        *_VERSION_1,
        ("versions", pa.list_(pa.int32())),  # of the weights that sampled each token, -1 where none did
        ("images", pa.list_(_SPAN)),
        ("pictures", pa.list_(pa.string())),  # SHA-256 of each picture of the row
        ("picture_bytes", pa.list_(pa.large_binary())),  # those of them that no row before has, in the same order
    ]
)
ROLLOUTS = TableKind(name="rollouts", version=2, schema=_VERSION_2, earlier={1: _VERSION_1})
_BATCH_ROWS = 48
"""Rows of one record batch, the least that a reader of one row decompresses. Smaller batches cost more than they save:
each column of each is compressed on its own."""
_INDEX_COLUMNS = ["id", "group_id", "chain", "stop"]
_ROW_COLUMNS = ("id", "problem_id", "group_id", "chain", "stop", "attempt", "env_reward", "metrics", "failure", "turns")
_OPTIONAL = frozenset({"env_reward", "failure"})
_STOPS = {reason.value: reason for reason in StopReason}


class PartInfo(BaseModel):
    """How a manifest knows a part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    groups: tuple[str, ...]
    rows: int
    sha256: str
    bytes: int

    @property
    def file(self) -> TableFile:
        return TableFile(rows=self.rows, sha256=self.sha256, bytes=self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartIndex:
    """Identity of a part's trajectories, row by row, without their tokens."""

    ids: tuple[str, ...]
    group_ids: tuple[str, ...]
    chains: tuple[int, ...]
    stops: tuple[StopReason, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """Group ids in order of first appearance."""
        return tuple(dict.fromkeys(self.group_ids))


def write_part(path: Path, groups: Sequence[TrajectoryGroup], *, step: int, attempt: int = 0) -> PartInfo:
    """Writes groups as one part, durably; returns how to recognise it.

    `attempt` counts how often the collection was started. Raises `ShardError` if the file system refuses, `ValueError`
    for a group without trajectories, a group id that stands twice or a picture that is not what its name says,
    `TypeError` for values that JSON cannot carry.
    """
    _check_groups(groups)
    table = _encode(groups, step=step)
    metadata = {"step": str(step), "attempt": str(attempt)}
    written = write_table(path, table, ROLLOUTS, metadata, batch_rows=_BATCH_ROWS)
    return PartInfo(
        name=path.name,
        groups=tuple(group.id for group in groups),
        rows=written.rows,
        sha256=written.sha256,
        bytes=written.bytes,
    )


def read_part(path: Path, expected: PartInfo | None = None) -> list[TrajectoryGroup]:
    """Reads groups in the order they were written, chains in their order; `reward` is None throughout.

    Arrays are read-only views of what their record batch holds. Raises `ShardError` naming the file if it is missing,
    truncated, of another version, or differs from what is expected.
    """
    table = read_table(path, ROLLOUTS, None if expected is None else expected.file)
    with _faults_named(path):
        groups = _decode(path, table.to_batches())
    if expected is not None and tuple(group.id for group in groups) != expected.groups:
        raise ShardError(f"{path} does not hold the groups that its manifest lists")
    return groups


def read_index(path: Path, expected: PartInfo | None = None) -> PartIndex:
    """Like `read_part`, with the same checks, but decodes only who the trajectories are and how they stopped."""
    table = read_table(path, ROLLOUTS, None if expected is None else expected.file).select(_INDEX_COLUMNS)
    ids, group_ids, chains, stops = (column.to_pylist() for column in table.columns)
    with _faults_named(path):
        index = PartIndex(
            ids=tuple(ids), group_ids=tuple(group_ids), chains=tuple(chains), stops=tuple(map(StopReason, stops))
        )
    if expected is not None and index.groups != expected.groups:
        raise ShardError(f"{path} does not hold the groups that its manifest lists")
    return index


class PartRows:
    """A part open for single trajectories: of the file, only what they need is read and decompressed.

    Checks what the rows say, not the file's checksum: use `read_part` where that matters. Close it, or use it as a
    context. Raises `ShardError` naming the file if it is missing or no part.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pa.memory_map(str(path))
        except OSError as error:
            raise ShardError(f"cannot read {path}: {error}") from error
        try:
            self._reader = pa.ipc.open_file(self._file, options=READING)
            header = table_metadata(self._reader.schema.empty_table())
            readable = {str(version) for version in (*ROLLOUTS.earlier, ROLLOUTS.version)}
            if header.get("kind") != ROLLOUTS.name or header.get("version") not in readable:
                raise pa.ArrowInvalid("no rollouts of a version that this program reads")
            self._rows = int(header["rows"])
            # All batches but the last are of one size, see `write_table`.
            self._last: tuple[int, pa.RecordBatch] | None = None
            self._batch_rows = self._batch(0).num_rows if self._rows else 1
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            self._file.close()
            raise ShardError(f"{path} is truncated or not a part of rollouts ({error})") from error

    def __enter__(self) -> PartRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._rows

    def close(self) -> None:
        """Let go of the file; what was read stays valid."""
        self._last = None
        self._file.close()

    def trajectory(self, row: int) -> tuple[Problem, Trajectory]:
        """The trajectory of a row, from 0, and its problem; `reward` is None. Raises `IndexError`, `ShardError`."""
        if not 0 <= row < self._rows:
            raise IndexError(f"{self._path} has {self._rows} rows, there is no row {row}")
        number, place = divmod(row, self._batch_rows)
        with _faults_named(self._path):
            batch = self._batch(number).slice(place, 1)
            # A problem may name pictures that another chain of its group has brought.
            shown = "pictures" in batch.schema.names and (
                batch["pictures"][0].as_py() or '"pictures":' in batch["problem"][0].as_py()
            )
            group = _decode(self._path, [batch], _Pictures(self._pictures_before(row) if shown else None))[0]
        return group.problem, group.trajectories[0]

    def _batch(self, number: int) -> pa.RecordBatch:
        """The last one is kept, because who looks at a row often looks at its neighbours."""
        if self._last is None or self._last[0] != number:
            batch = self._reader.get_batch(number)
            batch.validate(full=True)
            self._last = number, batch
        return self._last[1]

    def _pictures_before(self, row: int) -> dict[str, bytes]:
        pictures = _Pictures()
        for number in range(row // self._batch_rows + 1):
            batch = self._batch(number).select(["pictures", "picture_bytes"])
            for each in batch.slice(0, row - number * self._batch_rows).to_pylist():
                pictures.of(each["pictures"], each["picture_bytes"])
        return pictures.known


def inspect_part(path: Path, *, step: int) -> PartInfo:
    """Recognises a part that no manifest lists yet. Raises `ShardError` if it is unreadable or of another step."""
    table = read_table(path, ROLLOUTS)
    found = table_metadata(table).get("step")
    if found != str(step):
        raise ShardError(f"{path} was written for step {found}, not for step {step}; move it away")
    with _faults_named(path):
        groups = tuple(dict.fromkeys(group.id for group in _decode(path, table.to_batches())))
        return PartInfo(
            name=path.name, groups=groups, rows=table.num_rows, sha256=file_sha256(path), bytes=path.stat().st_size
        )


@contextmanager
def _faults_named(path: Path) -> Iterator[None]:
    """Arrow has checked the columns' types; what stands in them may still be anything if no checksum is known.

    Its own complaints about what it decompresses are of `ValueError` and `OSError`.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ShardError(
            f"{path} holds rows that no collection has written ({type(error).__name__}: {reason}); move it away"
        ) from error


def _check_groups(groups: Sequence[TrajectoryGroup]) -> None:
    seen: set[str] = set()
    for group in groups:
        if group.id in seen:
            raise ValueError(f"group {group.id} appears twice in one part")
        seen.add(group.id)
        if not group.trajectories:
            raise ValueError(f"group {group.id} has no trajectories; record it as dropped instead")
        strangers = [trajectory.id for trajectory in group.trajectories if trajectory.group_id != group.id]
        if strangers:
            raise ValueError(f"group {group.id} holds trajectories of another group: {', '.join(strangers)}")


def _encode(groups: Sequence[TrajectoryGroup], *, step: int) -> pa.Table:
    rows = [trajectory for group in groups for trajectory in group.trajectories]
    segments = [segment for row in rows for segment in row.segments]
    segment_counts = _offsets([len(row.segments) for row in rows])
    lengths = np.array([len(segment.token_ids) for segment in segments], np.int32)
    tokens = _offsets(_sums(lengths, segment_counts.to_numpy()))
    columns: dict[str, pa.Array] = {
        "id": pa.array([row.id for row in rows], pa.string()),
        "problem_id": pa.array([row.problem_id for row in rows], pa.string()),
        "group_id": pa.array([row.group_id for row in rows], pa.string()),
        "chain": pa.array([row.chain for row in rows], pa.int32()),
        "step": pa.array(np.full(len(rows), step, dtype=np.int32)),
        "attempt": pa.array([row.attempt for row in rows], pa.int32()),
        "policy_version": pa.array([row.policy_version for row in rows], pa.int32()),
        "stop": pa.array([row.stop.value for row in rows], pa.string()),
        "failure_kind": pa.array([row.failure and row.failure.kind.value for row in rows], pa.string()),
        "failure": pa.array([dump_failure(row.failure) for row in rows], pa.string()),
        "env_reward": pa.array([row.env_reward for row in rows], pa.float64()),
        "metrics": pa.array([dump_json(dict(row.metrics), f"metrics of {row.id}") for row in rows], pa.string()),
        "segment_lengths": pa.ListArray.from_arrays(segment_counts, pa.array(lengths)),
        "token_ids": _list_column(tokens, [segment.token_ids for segment in segments], np.int32),
        "loss_mask": _list_column(tokens, [segment.loss_mask for segment in segments], np.bool_),
        "logprobs": _list_column(tokens, [segment.logprobs for segment in segments], np.float32),
        "turns": _text_column(dump_turns([segment.turns for segment in row.segments], row.id) for row in rows),
        "problem": _problem_column(groups),
        "versions": _list_column(tokens, [segment.versions for segment in segments], np.int32),
        "images": pa.array([_span_rows(row.segments) for row in rows], pa.list_(_SPAN)),
        "pictures": pa.array([list(row.pictures) for row in rows], pa.list_(pa.string())),
        "picture_bytes": pa.array(_new_pictures(rows), pa.list_(pa.large_binary())),
    }
    return pa.Table.from_arrays([columns[name] for name in ROLLOUTS.schema.names], schema=ROLLOUTS.schema)


def _sums(lengths: npt.NDArray[Any], starts: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Sum of `lengths[starts[row] : starts[row + 1]]` for each row."""
    return np.diff(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[starts])


def _offsets(counts: npt.ArrayLike) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"a part can hold {np.iinfo(np.int32).max} tokens, these groups have {ends[-1]}; write smaller parts"
        )
    return pa.array(ends.astype(np.int32))


def _list_column(offsets: pa.Array, values: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> pa.ListArray:
    total = sum(map(len, values))
    # Arrow's memory is used again from part to part; numpy's comes fresh from the system, page by page.
    memory = pa.allocate_buffer(total * np.dtype(dtype).itemsize)
    flat = np.frombuffer(memory, dtype)
    np.concatenate([np.empty(0, dtype), *values], out=flat, casting="same_kind")
    kind = pa.from_numpy_dtype(dtype)
    if flat.dtype == np.bool_:  # what `pa.array` does six times slower
        memory = pa.py_buffer(np.packbits(flat, bitorder="little"))
    return pa.ListArray.from_arrays(offsets, pa.Array.from_buffers(kind, total, [None, memory]))


def _text_column(texts: Iterable[bytes]) -> pa.StringArray:
    """Of large texts, each of which is let go before the next is made; in UTF-8."""
    sink, ends = pa.BufferOutputStream(), [0]
    for text in texts:
        sink.write(text)
        ends.append(sink.tell())
    return pa.StringArray.from_buffers(len(ends) - 1, pa.array(ends, pa.int32()).buffers()[1], sink.getvalue())


def _problem_column(groups: Sequence[TrajectoryGroup]) -> pa.DictionaryArray:
    indices = np.repeat(np.arange(len(groups), dtype=np.int32), [len(group.trajectories) for group in groups])
    # Whoever reads the rows in order has the pictures of the group's first one when it comes to the problem.
    texts = [dump_problem(group.problem, group.trajectories[0].pictures) for group in groups]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(texts, pa.string()))


def _span_rows(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [
        {
            "segment": number,
            "digest": image.digest,
            "start": image.start,
            "end": image.end,
            "frames": image.grid[0],
            "rows": image.grid[1],
            "columns": image.grid[2],
        }
        for number, segment in enumerate(segments)
        for image in segment.images
    ]


def _spans(segments: int, images: Sequence[Mapping[str, Any]]) -> list[tuple[ImageSpan, ...]]:
    """Inverse of `_span_rows`: the images of each segment."""
    if not images:
        return [()] * segments
    spans: list[list[ImageSpan]] = [[] for _ in range(segments)]
    for image in images:
        if not 0 <= image["segment"] < segments:
            raise ValueError(f"an image of segment {image['segment']}, where there are {segments}")
        grid = (image["frames"], image["rows"], image["columns"])
        span = ImageSpan(digest=image["digest"], start=image["start"], end=image["end"], grid=grid)
        spans[image["segment"]].append(span)
    return [tuple(each) for each in spans]


def _new_pictures(rows: Iterable[Trajectory]) -> list[list[bytes]]:
    """For each row the pictures that no row before it has."""
    known: set[str] = set()
    new: list[list[bytes]] = []
    for row in rows:
        added = {digest: data for digest, data in row.pictures.items() if digest not in known}
        for digest, data in added.items():
            _check_picture(digest, data)
        known.update(added)
        new.append(list(added.values()))
    return new


def _check_picture(digest: str, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(
            f"the picture named {digest[:12]}... is another one: its {len(data)} bytes have another SHA-256"
        )


class _Pictures:
    """The pictures of a part while its rows are read in order."""

    def __init__(self, known: Mapping[str, bytes] | None = None) -> None:
        self.known: dict[str, bytes] = dict(known or {})

    def of(self, digests: Sequence[str], new: Sequence[bytes]) -> dict[str, bytes]:
        if not digests and not new:
            return {}
        unknown = [digest for digest in digests if digest not in self.known]
        for digest, data in zip(unknown, new, strict=True):
            _check_picture(digest, data)
            self.known[digest] = data
        return {digest: self.known[digest] for digest in digests}


class _Tokens:
    """The numeric list columns of a record batch, cut into segments on demand."""

    def __init__(self, path: Path, batch: pa.RecordBatch) -> None:
        self._token_ids, starts = _flat(batch, "token_ids")
        self._loss_mask, mask_starts = _flat(batch, "loss_mask")
        self._logprobs, logprob_starts = _flat(batch, "logprobs")
        self._versions, version_starts = None, starts
        if "versions" in batch.schema.names:
            self._versions, version_starts = _flat(batch, "versions")
        lengths, segment_starts = _flat(batch, "segment_lengths")
        if not all(np.array_equal(starts, each) for each in (mask_starts, logprob_starts, version_starts)):
            raise ShardError(f"{path}: tokens, loss mask, log-probs and versions have different lengths")
        bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if not np.array_equal(bounds[segment_starts], starts):
            raise ShardError(f"{path}: the segment lengths do not add up to the tokens")
        self._bounds: list[int] = bounds.tolist()
        self._segment_starts: list[int] = segment_starts.tolist()

    def segments(
        self, row: int, turns: Sequence[tuple[Turn, ...]], images: Sequence[Mapping[str, Any]]
    ) -> tuple[Segment, ...]:
        first, last = self._segment_starts[row], self._segment_starts[row + 1]
        bounds = self._bounds[first : last + 1]
        return tuple(
            Segment(
                token_ids=self._token_ids[start:end],
                loss_mask=self._loss_mask[start:end],
                logprobs=self._logprobs[start:end],
                turns=of_segment,
                images=spans,
                **({} if self._versions is None else {"versions": self._versions[start:end]}),
            )
            for start, end, of_segment, spans in zip(
                bounds[:-1], bounds[1:], turns, _spans(last - first, images), strict=True
            )
        )


def _flat(batch: pa.RecordBatch, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
    """Values `[sum of lengths]` and offsets `[rows + 1]` of a list column."""
    column = batch[name]
    offsets = column.offsets.to_numpy()
    flat = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if column.null_count or flat.null_count:
        raise ValueError(f"{name} has nulls")
    values = _unpacked(flat) if pa.types.is_boolean(flat.type) else flat.to_numpy()
    values.flags.writeable = False
    return values, offsets - offsets[0]


def _unpacked(bits: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """What Arrow does five times slower."""
    packed = np.frombuffer(bits.buffers()[1] or b"", np.uint8)
    first, skipped = divmod(bits.offset, 8)
    return np.unpackbits(packed[first:], count=skipped + len(bits), bitorder="little")[skipped:].view(np.bool_)


def _decode(path: Path, batches: Iterable[pa.RecordBatch], pictures: _Pictures | None = None) -> list[TrajectoryGroup]:
    pictures = pictures or _Pictures()
    problems: dict[str, Problem] = {}  # a text stands once per group in the dictionary, and is parsed once
    groups: dict[str, tuple[Problem, list[Trajectory]]] = {}
    for batch in batches:
        tokens = _Tokens(path, batch)
        plain = (_values(batch, name) for name in _ROW_COLUMNS)
        listed = (_lists(batch, name) for name in ("images", "pictures", "picture_bytes"))
        for number, (text, *row) in enumerate(zip(_texts(batch, "problem"), *plain, *listed, strict=True)):
            name, problem_id, group_id, chain, stop, attempt, env_reward, metrics, failure, turns, *seen = row
            images, digests, new = seen
            trajectory = Trajectory(
                id=name,
                problem_id=problem_id,
                group_id=group_id,
                chain=chain,
                segments=tokens.segments(number, load_turns(turns), images),
                stop=_STOPS[stop],
                attempt=attempt,
                env_reward=env_reward,
                metrics=load_json(metrics),
                failure=load_failure(failure),
                pictures=pictures.of(digests, new),
            )
            if text not in problems:
                problems[text] = load_problem(text, pictures.known)
            groups.setdefault(group_id, (problems[text], []))[1].append(trajectory)
    return [
        TrajectoryGroup(id=group_id, problem=problem, trajectories=tuple(trajectories))
        for group_id, (problem, trajectories) in groups.items()
    ]


def _texts(batch: pa.RecordBatch, name: str) -> Iterator[str]:
    """The texts of a dictionary column, of which only those that stand in it are made."""
    column = batch[name]
    if column.null_count:
        raise ValueError(f"{name} has nulls")
    texts: dict[int, str] = {}
    for index in column.indices.to_numpy().tolist():
        if index not in texts:
            texts[index] = column.dictionary[index].as_py()
        yield texts[index]


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """A column without lists as Python's values."""
    column = batch[name]
    if column.null_count:
        if name not in _OPTIONAL:
            raise ValueError(f"{name} has nulls")
        return column.to_pylist()
    return column.to_numpy(zero_copy_only=False).tolist()


def _lists(batch: pa.RecordBatch, name: str) -> Iterable[Sequence[Any]]:
    """A column of lists as Python's values. Most parts have no pictures, which then cost nothing."""
    if name not in batch.schema.names:
        return repeat((), batch.num_rows)
    column = batch[name]
    if column.null_count:
        raise ValueError(f"{name} has nulls")
    offsets = column.offsets.to_numpy()
    return column.to_pylist() if offsets[0] < offsets[-1] else repeat((), batch.num_rows)
