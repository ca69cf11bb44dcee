"""Trajectories on their way out: as lines of JSON, as Parquet, and as one HTML file that needs nothing else.

An export is bounded, and reads one part after another, so lines and rows have the order of the steps. JSON and Parquet
hold what was sampled and what the update saw of it, token by token; HTML is for people. The page of a whole run shows a
sample: the best and the worst of the newest step, what failed, what was cut, and some of every step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from agentfly_lib.errors import UserError
from agentfly_lib.store.learned import LearnedTokens
from agentfly_lib.types import Problem, Trajectory, TrajectoryGroup
from agentfly_lib.viewer.web.catalog import Filters, Row
from agentfly_lib.viewer.web.shelf import Shelf
from agentfly_lib.viewer.web.spans import Knowledge

__all__ = ["MOST_EXPORTED", "Chosen", "chosen", "exported", "sample", "write_jsonl", "write_parquet"]

MOST_EXPORTED: Mapping[str, int] = {"html": 100, "jsonl": 10_000, "parquet": 10_000}
"""Kinds of files, and the trajectories that one can hold."""

_FLOATS = pa.list_(pa.list_(pa.float32()))
_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("split", pa.string()),
        ("step", pa.int32()),
        ("trajectory", pa.string()),
        ("problem", pa.string()),
        ("group", pa.string()),
        ("chain", pa.int32()),
        ("stop", pa.string()),
        ("failure", pa.string()),
        ("reward", pa.float64()),
        ("reward_parts", pa.string()),
        ("policy_version", pa.int32()),
        ("metrics", pa.string()),
        ("columns", pa.string()),
        ("messages", pa.string()),
        ("token_ids", pa.list_(pa.list_(pa.int32()))),
        ("loss_mask", pa.list_(pa.list_(pa.bool_()))),
        ("versions", pa.list_(pa.list_(pa.int32()))),
        ("rollout_logprobs", _FLOATS),
        ("old_logprobs", _FLOATS),
        ("logprobs", _FLOATS),
        ("advantages", _FLOATS),
    ]
)
_TEXTS = ("reward_parts", "metrics", "columns", "messages")
"""Columns that are JSON text in Parquet, because their shape is the recipe's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A trajectory that leaves."""

    row: Row
    trajectory: Trajectory
    group: TrajectoryGroup
    knowledge: Knowledge
    reason: str = ""
    """Why it was chosen, where it is one of a sample."""

    @property
    def problem(self) -> Problem:
        return self.group.problem


def chosen(shelf: Shelf, rows: Sequence[Row], *, reasons: Mapping[str, str] | None = None) -> Iterator[Chosen]:
    """Loads the trajectories of some rows, in their order; every group once in a row."""
    key, group, knowledge = None, None, Knowledge()
    for row in rows:
        if group is None or key != (row.split, row.step, row.group_id):
            key = (row.split, row.step, row.group_id)
            group = shelf.catalog.group(row.split, row.step, row.group_id)
            knowledge = shelf.knowledge(row.split, row.step, group)
        trajectory = next(each for each in group.trajectories if each.id == row.id)
        reason = (reasons or {}).get(row.id, "")
        yield Chosen(row=row, trajectory=trajectory, group=group, knowledge=knowledge, reason=reason)


def exported(shelf: Shelf, filters: Filters, kind: str, query: Mapping[str, str] | None = None) -> list[Row]:
    """Rows of an export, at most as many as a file of its kind holds.

    query: may name one `group`, and one `chain` of it. Raises `UserError` if there is nothing like that.
    """
    if kind not in MOST_EXPORTED:
        raise UserError(f"{kind!r} is not a format for exports; use one of {', '.join(MOST_EXPORTED)}")
    group, chain = (query or {}).get("group"), (query or {}).get("chain")
    if group is None:
        rows = list(shelf.catalog.find(filters, limit=MOST_EXPORTED[kind]).rows)
    else:
        rows = [
            row
            for row in shelf.catalog.of_group(filters.split, filters.step, group)
            if chain is None or str(row.chain) == chain
        ]
    if not rows:
        raise UserError("no trajectory matches the filters, so there is nothing to export")
    return rows


def sample(shelf: Shelf, count: int = 24) -> tuple[list[Row], dict[str, str]]:
    """Rows that say most about a run, and why each is among them, by the trajectory's id."""
    steps = shelf.catalog.steps()
    newest = steps[-1] if steps else 0
    share = max(count // 6, 1)
    wishes: list[tuple[str, Filters, int]] = [
        ("failed", Filters(outcome="failed"), share),
        ("could not be scored", Filters(outcome="dropped"), share),
        ("cut by a limit", Filters(outcome="truncated"), share),
        ("among the worst of the newest step", Filters(step=newest, sort="reward", order="ascending"), share),
        ("among the best of the newest step", Filters(step=newest, sort="reward"), share),
        *((f"one of step {step}", Filters(step=step), 1) for step in _spread(steps, count)),
        ("one of the newest", Filters(), count),
    ]
    found: dict[str, Row] = {}
    reasons: dict[str, str] = {}
    for reason, filters, wanted in wishes:
        fresh = [row for row in shelf.catalog.find(filters, limit=wanted + count).rows if row.id not in found]
        for row in fresh[: min(wanted, count - len(found))]:
            found[row.id], reasons[row.id] = row, reason
    return list(found.values()), reasons


def write_jsonl(path: Path, shelf: Shelf, rows: Sequence[Row]) -> None:
    """One trajectory on each line; numbers that are not known are null."""
    with path.open("w", encoding="utf-8") as file:
        for record in _records(shelf, rows):
            file.write(json.dumps(record, separators=(",", ":")) + "\n")


def write_parquet(path: Path, shelf: Shelf, rows: Sequence[Row], *, batch: int = 256) -> None:
    """One trajectory in each row; lists of segments of tokens, and JSON text where the shape is the recipe's."""
    import pyarrow.parquet as pq  # which loads pandas

    with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        waiting: list[dict[str, Any]] = []
        for record in _records(shelf, rows):
            waiting.append(record | {name: json.dumps(record[name]) for name in _TEXTS})
            if len(waiting) == batch:
                writer.write_table(pa.Table.from_pylist(waiting, _SCHEMA))
                waiting.clear()
        if waiting:
            writer.write_table(pa.Table.from_pylist(waiting, _SCHEMA))


def _records(shelf: Shelf, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    in_files = sorted(rows, key=lambda row: (row.split, row.step, row.group_id, row.chain))  # every part is read once
    for each in chosen(shelf, in_files):
        trajectory, row = each.trajectory, each.row
        learned = [each.knowledge.of(trajectory, number) for number in range(len(trajectory.segments))]
        failure = trajectory.failure
        yield {
            "run": shelf.name,
            "split": row.split,
            "step": row.step,
            "trajectory": trajectory.id,
            "problem": trajectory.problem_id,
            "group": trajectory.group_id,
            "chain": trajectory.chain,
            "stop": trajectory.stop.value,
            "failure": None if failure is None else f"{failure.kind} at {failure.where}: {failure.message}",
            "reward": trajectory.reward,
            "reward_parts": dict(trajectory.reward_parts),
            "policy_version": trajectory.policy_version,
            "metrics": dict(trajectory.metrics),
            "columns": dict(each.problem.columns),
            "messages": [*each.problem.messages, *trajectory.messages],
            "token_ids": [segment.token_ids.tolist() for segment in trajectory.segments],
            "loss_mask": [segment.loss_mask.tolist() for segment in trajectory.segments],
            "versions": [segment.versions.tolist() for segment in trajectory.segments],
            "rollout_logprobs": [_known(segment.logprobs) for segment in trajectory.segments],
            **{name: _learned(learned, name) for name in ("old_logprobs", "logprobs", "advantages")},
        }


def _learned(learned: Iterable[LearnedTokens | None], name: str) -> list[list[float | None]]:
    return [[] if each is None else _known(getattr(each, name)) for each in learned]


def _known(values: Any) -> list[float | None]:
    return [None if np.isnan(value) else value for value in np.asarray(values, np.float32).tolist()]


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of the steps, evenly, the newest first."""
    stride = max(len(steps) // max(count, 1), 1)
    return list(reversed(steps))[::stride]
