"""All trajectories of a run as one table of a few narrow columns, and one trajectory whole when it is asked for.

Of every part only the columns that tell trajectories apart are read, once, and kept by the part's checksum: a run that
goes on costs the new parts alone. Nothing is proven here; a part is checked against its checksum when a trajectory of
it is opened.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute

from agentfly_lib.errors import AgentFlyError, ShardError, UserError
from agentfly_lib.store.layout import RunDirectory, StepDirectory
from agentfly_lib.store.manifest import read_rollout_manifest
from agentfly_lib.store.scores import SCORES, read_score_manifest, read_scores
from agentfly_lib.store.shards import ROLLOUTS, PartInfo, read_part
from agentfly_lib.types import TrajectoryGroup

__all__ = ["Catalog", "Filters", "Page", "Row"]

logger = logging.getLogger(__name__)
pc: Any = pyarrow.compute  # its functions are made when it is imported, where a type checker does not see them

_COLUMNS = ("id", "group_id", "chain", "step", "policy_version", "stop", "failure_kind", "segment_lengths")
SORTS = {"step": "step", "reward": "reward", "tokens": "tokens"}
Order = Literal["ascending", "descending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which trajectories are wanted, and in which order. Everything that is None leaves all of them."""

    step: int | None = None
    stop: str | None = None
    outcome: str | None = None
    failure: str | None = None
    tool: str | None = None
    """Name of a tool that answered."""
    min_reward: float | None = None
    max_reward: float | None = None
    sort: str = "step"
    order: Order = "descending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory in the list."""

    id: str
    group_id: str
    chain: int
    step: int
    policy_version: int
    stop: str
    failure_kind: str | None
    tokens: int
    outcome: str | None
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the trajectories that were found."""

    rows: tuple[Row, ...]
    found: int
    total: int
    offset: int


@dataclass
class Catalog:
    """The trajectories of a run's training steps."""

    run: RunDirectory
    _parts: dict[str, pa.Table] = field(default_factory=dict)
    """By the part's checksum and that of its scores."""
    _tools: dict[tuple[str, str], pa.Array] = field(default_factory=dict)
    """Rows of a part in which a tool answered, by the part's checksum and the tool's name."""
    _key: tuple[Any, ...] = ()
    _table: pa.Table | None = None

    @property
    def steps(self) -> list[int]:
        return self.run.steps()

    def table(self) -> pa.Table:
        """One row per trajectory: what is on disk now. A step that cannot be read is left out, with a warning."""
        found: list[tuple[int, PartInfo, str | None]] = []
        for step in self.steps:
            found += self._listed(step)
        key = tuple((step, part.sha256, scores) for step, part, scores in found)
        if self._table is None or key != self._key:
            tables = [table for entry in found if (table := self._part(*entry)) is not None]
            self._table = pa.concat_tables(tables) if tables else _empty()
            self._key = key
        return self._table

    def find(self, filters: Filters, *, offset: int = 0, limit: int = 50) -> Page:
        """A page of what the filters leave. Raises `UserError` for an order that there is not."""
        if filters.sort not in SORTS:
            raise UserError(f"there is no order by {filters.sort!r}; use one of {', '.join(SORTS)}")
        table = self.table()
        total = table.num_rows
        for name, wanted in (
            ("step", filters.step),
            ("stop", filters.stop),
            ("outcome", filters.outcome),
            ("failure_kind", filters.failure),
        ):
            if wanted is not None:
                table = table.filter(pc.equal(table[name], wanted))
        if filters.min_reward is not None:
            table = table.filter(pc.greater_equal(table["reward"], filters.min_reward))
        if filters.max_reward is not None:
            table = table.filter(pc.less_equal(table["reward"], filters.max_reward))
        if filters.tool is not None:
            table = table.filter(self._used(table, filters.tool))
        table = table.sort_by([(SORTS[filters.sort], filters.order), ("id", "ascending")])  # nulls come last
        shown = table.slice(offset, limit).drop_columns(["part", "row"])
        rows = tuple(Row(**row) for row in shown.to_pylist())
        return Page(rows=rows, found=table.num_rows, total=total, offset=offset)

    def rewards(self) -> list[tuple[int, float]]:
        """Mean reward of every step that has one, by step."""
        table = self.table().select(["step", "reward"])
        table = table.filter(pc.is_valid(table["reward"]))
        means = table.group_by("step").aggregate([("reward", "mean")]).sort_by("step")
        return list(zip(means["step"].to_pylist(), means["reward_mean"].to_pylist(), strict=True))

    def values(self, name: str) -> list[str]:
        """What stands in a column, sorted."""
        return sorted(value for value in pc.unique(self.table()[name]).to_pylist() if value is not None)

    def group(self, step: int, group_id: str) -> TrajectoryGroup:
        """A group with its rewards, chains in their order. Raises `UserError` if there is none of that name."""
        directory = self.run.step(step)
        if step not in self.steps:
            raise UserError(f"the run has no step {step}")
        for part in read_rollout_manifest(directory).parts:
            if group_id in part.groups:
                found = next(g for g in read_part(directory.rollouts / part.name, part) if g.id == group_id)
                return _scored(found, directory, part)
        raise UserError(f"step {step} has no group {group_id!r}")

    def _listed(self, step: int) -> list[tuple[int, PartInfo, str | None]]:
        directory = self.run.step(step)
        try:
            parts = read_rollout_manifest(directory).parts
            scores = {each.name: each.sha256 for each in _score_parts(directory)}
        except ShardError as error:
            logger.warning("step %d is left out: %s", step, error)
            return []
        return [(step, part, scores.get(part.name)) for part in parts]

    def _part(self, step: int, part: PartInfo, scores: str | None) -> pa.Table | None:
        key = f"{part.sha256} {scores}"
        if key not in self._parts:
            directory = self.run.step(step)
            try:
                self._parts[key] = _read(directory, part, scored=scores is not None)
            except (ShardError, pa.ArrowException, OSError, ValueError, KeyError) as error:
                logger.warning("%s is left out: %s", directory.rollouts / part.name, error)
                return None
        return self._parts[key]

    def _used(self, table: pa.Table, tool: str) -> pa.Array:
        """Which rows have a message of this tool."""
        needle = f'"name":{json.dumps(tool)}'
        used = np.zeros(table.num_rows, bool)
        part_of_row, rows = table["part"].to_numpy(), table["row"].to_numpy()
        for name in np.unique(part_of_row):
            here = part_of_row == name
            if (name, tool) not in self._tools:
                turns = _columns(Path(name), ROLLOUTS.schema, ("turns",))["turns"].combine_chunks()
                self._tools[name, tool] = pc.match_substring(turns, needle)
            used[here] = self._tools[name, tool].to_numpy(zero_copy_only=False)[rows[here]]
        return pa.array(used)


def _read(directory: StepDirectory, part: PartInfo, *, scored: bool) -> pa.Table:
    path = directory.rollouts / part.name
    table = _columns(path, ROLLOUTS.schema, _COLUMNS)
    lengths = table["segment_lengths"].combine_chunks()
    sums = np.concatenate([[0], np.cumsum(lengths.values.to_numpy(), dtype=np.int64)])
    tokens = np.diff(sums[lengths.offsets.to_numpy()])
    count = table.num_rows
    table = table.drop_columns(["segment_lengths"]).append_column("tokens", pa.array(tokens, pa.int64()))
    table = table.append_column(
        "part", pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [str(path)]).cast("string")
    )
    table = table.append_column("row", pa.array(np.arange(count, dtype=np.int32)))
    outcome, reward = pa.nulls(count, pa.string()), pa.nulls(count, pa.float64())
    if scored:
        scores = _columns(directory.scores / part.name, SCORES.schema, ("trajectory_id", "outcome", "reward"))
        place = pc.index_in(table["id"], scores["trajectory_id"].combine_chunks())
        outcome = scores["outcome"].combine_chunks().take(place.combine_chunks())
        reward = scores["reward"].combine_chunks().take(place.combine_chunks())
    return table.append_column("outcome", outcome).append_column("reward", reward)


def _empty() -> pa.Table:
    names = [name for name in _COLUMNS if name != "segment_lengths"]
    fields = [ROLLOUTS.schema.field(name) for name in names]
    more = {
        "tokens": pa.int64(),
        "part": pa.string(),
        "row": pa.int32(),
        "outcome": pa.string(),
        "reward": pa.float64(),
    }
    return pa.schema([*fields, *more.items()]).empty_table()


def _columns(path: Path, schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    """Some columns of a table file; the bytes of the others are not read."""
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source, options=options).read_all().select(list(names)).replace_schema_metadata(None)


def _score_parts(directory: StepDirectory) -> Sequence[Any]:
    return read_score_manifest(directory).parts if directory.score_manifest.exists() else ()


def _scored(group: TrajectoryGroup, directory: StepDirectory, part: PartInfo) -> TrajectoryGroup:
    trajectories = sorted(group.trajectories, key=lambda each: each.chain)
    try:
        listed = next(each for each in _score_parts(directory) if each.name == part.name)
        scores = {score.trajectory_id: score for score in read_scores(directory.scores / part.name, listed)}
        trajectories = [
            dataclasses.replace(each, reward=scores[each.id].reward, reward_parts=scores[each.id].parts)
            for each in trajectories
        ]
    except (StopIteration, KeyError):
        logger.info("group %s has no rewards yet", group.id)
    except AgentFlyError as error:
        logger.warning("the rewards of group %s are not shown: %s", group.id, error)
    return dataclasses.replace(group, trajectories=tuple(trajectories))
