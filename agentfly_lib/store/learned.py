"""What a step's update saw of every token that it trained on, kept beside the step for those who look at it.

One row per training sample (a segment of a trajectory) and, over its trained tokens, three numbers: the log-prob at the
start of the step, the log-prob in the forward pass that the token was trained in, and the advantage. With the log-prob
at sampling time, which the rollouts have, these give every ratio of the loss. Nothing reads this file to train; a step
without one (a run of an older version) is as good as any other.

Rows lie in batches of a few hundred, so that a reader loads those that it shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from agentfly_lib.errors import ShardError
from agentfly_lib.store.arrow import TableKind, table_metadata, write_table
from agentfly_lib.store.atomic import ensure_directory
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import read_rollout_manifest
from agentfly_lib.types import TrainingSample

__all__ = ["LEARNED", "LearnedTokens", "has_learned", "read_learned", "write_learned"]

LEARNED = TableKind(
    name="learned",
    version=1,
    schema=pa.schema(
        [
            ("trajectory_id", pa.string()),
            ("segment", pa.int32()),
            ("trained", pa.list_(pa.bool_())),  # [T]
            ("old_logprobs", pa.list_(pa.float32())),  # [N]  of the trained tokens
            ("logprobs", pa.list_(pa.float32())),  # [N]
            ("advantages", pa.list_(pa.float32())),  # [N]
        ]
    ),
)
pc: Any = pyarrow.compute  # its functions are made when it is imported, where a type checker does not see them
_BATCH_ROWS = 256
_VALUES = ("old_logprobs", "logprobs", "advantages")

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnedTokens:
    """One segment; NaN where a token was not trained on."""

    old_logprobs: FloatArray  # [T]  at the start of the step
    logprobs: FloatArray  # [T]  in the pass that the token was trained in
    advantages: FloatArray  # [T]


def write_learned(
    step: StepDirectory,
    samples: Sequence[TrainingSample],
    *,
    old_logprobs: Sequence[npt.NDArray[Any]],
    logprobs: Sequence[npt.NDArray[Any]],
) -> None:
    """Writes the step's file, whole or not at all; both lists hold one array [N] for each sample.

    Does nothing if there is one of the same rollouts: what a run did stays as it was when its steps are trained again,
    by a resume or a replay. Raises `ShardError` if the file system refuses.
    """
    rollouts = _digest(step)
    if has_learned(step) and _metadata(step.learned_file).get("rollouts") == rollouts:
        return
    masks = [sample.loss_mask for sample in samples]
    columns = {
        "trajectory_id": pa.array([sample.trajectory_id for sample in samples], pa.string()),
        "segment": pa.array([sample.segment for sample in samples], pa.int32()),
        "trained": _lists(masks, np.bool_),
        "old_logprobs": _lists(old_logprobs, np.float32),
        "logprobs": _lists(logprobs, np.float32),
        "advantages": _lists([sample.advantages[sample.loss_mask] for sample in samples], np.float32),
    }
    whole = pa.record_batch([columns[name] for name in LEARNED.schema.names], schema=LEARNED.schema)
    batches = [whole.slice(first, _BATCH_ROWS) for first in range(0, whole.num_rows, _BATCH_ROWS)]
    try:
        ensure_directory(step.learned_file.parent)
    except OSError as error:
        raise ShardError(f"cannot make {step.learned_file.parent}: {error.strerror}") from error
    write_table(step.learned_file, pa.Table.from_batches(batches, LEARNED.schema), LEARNED, {"rollouts": rollouts})


def has_learned(step: StepDirectory) -> bool:
    """There is such a file."""
    return step.learned_file.exists()


def read_learned(step: StepDirectory, trajectories: Sequence[str]) -> dict[tuple[str, int], LearnedTokens]:
    """What is known of some trajectories, by their id and the number of the segment.

    Empty if the step has no such file, or one of other rollouts. Raises `ShardError` naming a file that is damaged.
    """
    path = step.learned_file
    if not has_learned(step) or _metadata(path).get("rollouts") != _digest(step):
        return {}
    wanted = pa.array(trajectories, pa.string())
    found: dict[tuple[str, int], LearnedTokens] = {}
    try:
        with pa.memory_map(str(path)) as source:
            identities = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
            whole = pa.ipc.open_file(source)
            for number in range(identities.num_record_batches):
                if not set(identities.get_batch(number).column(0).to_pylist()).isdisjoint(trajectories):
                    batch = whole.get_batch(number)
                    batch.validate(full=True)
                    found |= _rows(batch.filter(pc.is_in(batch.column(0), value_set=wanted)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardError(f"{path} is damaged ({error}); remove it: nothing but the viewer needs it") from error
    return found


def _rows(batch: pa.RecordBatch) -> dict[tuple[str, int], LearnedTokens]:
    found: dict[tuple[str, int], LearnedTokens] = {}
    for row in range(batch.num_rows):
        trained = batch.column("trained")[row].values.to_numpy(zero_copy_only=False)
        values = {}
        for name in _VALUES:
            values[name] = np.full(len(trained), np.nan, np.float32)
            values[name][trained] = batch.column(name)[row].values.to_numpy()
        found[batch.column("trajectory_id")[row].as_py(), batch.column("segment")[row].as_py()] = LearnedTokens(
            **values
        )
    return found


def _lists(values: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> pa.ListArray:
    ends = np.cumsum([0, *(len(each) for each in values)], dtype=np.int64)
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"a step of {ends[-1]} tokens does not fit into one file")
    flat = np.concatenate([np.empty(0, dtype), *values]).astype(dtype, copy=False)
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(flat, from_pandas=False))


def _digest(step: StepDirectory) -> str:
    """Of the rollouts that are there now."""
    parts = read_rollout_manifest(step).parts
    return hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()


def _metadata(path: Path) -> dict[str, str]:
    try:
        with pa.memory_map(str(path)) as source:
            found = table_metadata(pa.ipc.open_file(source).schema.empty_table())
    except (pa.ArrowException, OSError):
        return {}
    same = found.get("kind") == LEARNED.name and found.get("version") == str(LEARNED.version)
    return found if same else {}
