"""All trajectories of a run as one table of a few narrow columns, and one trajectory whole when it is asked for.

Training steps and held-out evaluations lie side by side, told apart by their split. Of every part only the columns that
tell trajectories apart are read, once, and kept by the part's checksum: a run that goes on costs the new parts alone.
Nothing is proven here; a part is checked against its checksum when a trajectory of it is opened.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute

from agentfly_lib.errors import AgentFlyError, ShardError, UserError
from agentfly_lib.store.arrow import TableKind
from agentfly_lib.store.layout import RunDirectory, StepDirectory
from agentfly_lib.store.manifest import read_rollout_manifest
from agentfly_lib.store.scores import SCORES, read_score_manifest, read_scores
from agentfly_lib.store.shards import ROLLOUTS, PartInfo, read_part
from agentfly_lib.store.turns import load_problem
from agentfly_lib.types import TrajectoryGroup
from agentfly_lib.viewer.text import content_text

__all__ = ["SORTS", "SPLITS", "Catalog", "Filters", "Page", "Row", "one_look"]

logger = logging.getLogger(__name__)
pc: Any = pyarrow.compute  # its functions are made when it is imported, where a type checker does not see them

_COLUMNS = (
    "id", "problem_id", "group_id", "chain", "policy_version", "stop", "failure_kind", "segment_lengths",
)  # fmt: skip
SPLITS = ("train", "sampled", "greedy")
"""Training steps, and evaluations on the held-out problems in both modes, whose step is the policy version."""
SORTS = ("step", "reward", "tokens")
Order = Literal["ascending", "descending"]
_QUESTION_LENGTH = 160
_READERS = 4
_looked: ContextVar[dict[Path, pa.Table] | None] = ContextVar("looked", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """Within it the files of a run are looked at once: what a page shows is all of one moment."""
    token = _looked.set({})
    try:
        yield
    finally:
        _looked.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which trajectories are wanted, and in which order. Everything that is None leaves all of them."""

    split: str = "train"
    step: int | None = None
    problem: str | None = None
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
    problem_id: str
    group_id: str
    chain: int
    split: str
    step: int
    policy_version: int
    stop: str
    failure_kind: str | None
    tokens: int
    outcome: str | None
    reward: float | None
    question: str
    """What the problem asks, cut to a line."""

    @property
    def address(self) -> str:
        """Path of its group among the pages."""
        return f"{self.split}/{self.step}/{quote(self.group_id, safe='')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the trajectories that were found."""

    rows: tuple[Row, ...]
    found: int
    total: int
    offset: int


@dataclass
class Catalog:
    """The trajectories of a run."""

    run: RunDirectory
    _parts: dict[str, pa.Table] = field(default_factory=dict)
    """By the part's checksum and that of its scores."""
    _tools: dict[tuple[str, str], pa.Array] = field(default_factory=dict)
    """Rows of a part in which a tool answered, by the part's path and the tool's name."""
    _listings: dict[Path, tuple[tuple[Any, ...], list[tuple[PartInfo, str | None]]]] = field(default_factory=dict)
    """Parts of a step with the checksums of their scores, as long as its manifests are the same files."""
    _last: tuple[tuple[Path, str] | None, list[TrajectoryGroup]] = field(default=(None, []))
    """The part that was read last."""
    _derived: dict[tuple[str, str], tuple[pa.Table, Any]] = field(default_factory=dict)
    """Tables with what was counted over them: as long as these are the same, so is what was counted."""
    _key: tuple[Any, ...] = ()
    _table: pa.Table | None = None

    def steps(self, split: str = "train") -> list[int]:
        """Steps that have a directory, or versions that were evaluated."""
        if split == "train":
            return self.run.steps()
        return [version for version in self.run.evaluations() if self.directory(split, version).path.is_dir()]

    def directory(self, split: str, step: int) -> StepDirectory:
        """Where a step's trajectories lie. Raises `UserError` for a split that there is not."""
        if split not in SPLITS:
            raise UserError(f"there is no split {split!r}; use one of {', '.join(SPLITS)}")
        return self.run.step(step) if split == "train" else self.run.evaluation(step, split)

    def table(self) -> pa.Table:
        """One row per trajectory: what is on disk now, or was at the first call within `one_look`.

        A step that cannot be read is left out, with a warning.
        """
        looked = _looked.get()
        if looked is None:
            return self._look()
        if self.run.path not in looked:
            looked[self.run.path] = self._look()
        return looked[self.run.path]

    def _look(self) -> pa.Table:
        found: list[tuple[str, int, PartInfo, str | None]] = []
        for split in SPLITS:
            for step in self.steps(split):
                found += self._listed(split, step)
        key = tuple((split, step, part.sha256, scores) for split, step, part, scores in found)
        if self._table is None or key != self._key:
            with ThreadPoolExecutor(_READERS) as readers:
                tables = [table for table in readers.map(lambda entry: self._part(*entry), found) if table is not None]
            # in one piece, in which rows are found in a moment; parts are many and small
            self._table = pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else _empty()
            self._key = key
        return self._table

    def find(self, filters: Filters, *, offset: int = 0, limit: int = 50) -> Page:
        """A page of what the filters leave. Raises `UserError` for an order or a split that there is not."""
        left = self._filtered(filters)
        order = [(filters.sort, filters.order), ("id", "ascending")]  # nulls come last
        rows = self._rows(left.take(pc.sort_indices(left, order).slice(offset, limit)))
        return Page(rows=rows, found=left.num_rows, total=self._total(filters.split), offset=offset)

    def _filtered(self, filters: Filters) -> pa.Table:
        if filters.sort not in SORTS:
            raise UserError(f"trajectories cannot be sorted by {filters.sort!r}; use one of {', '.join(SORTS)}")
        if filters.split not in SPLITS:
            raise UserError(f"there is no split {filters.split!r}; use one of {', '.join(SPLITS)}")
        table = self._split(filters.split)
        equal = (
            ("step", filters.step),
            ("problem_id", filters.problem),
            ("stop", filters.stop),
            ("outcome", filters.outcome),
            ("failure_kind", filters.failure),
        )
        conditions = [pc.equal(table[name], wanted) for name, wanted in equal if wanted is not None]
        if filters.min_reward is not None:
            conditions.append(pc.greater_equal(table["reward"], filters.min_reward))
        if filters.max_reward is not None:
            conditions.append(pc.less_equal(table["reward"], filters.max_reward))
        if conditions:
            table = table.filter(functools.reduce(pc.and_, conditions))
        if filters.tool is not None:
            table = table.filter(self._used(table, filters.tool))
        return table

    def _split(self, split: str) -> pa.Table:
        return self._once("rows", split, self.table(), lambda table: table.filter(pc.equal(table["split"], split)))

    def _once(self, what: str, of: str, table: pa.Table, derive: Callable[[pa.Table], Any]) -> Any:
        """What is derived from a table, once for as long as it is the same."""
        known = self._derived.get((what, of))
        if known is None or known[0] is not table:
            known = self._derived[what, of] = (table, derive(table))
        return known[1]

    def texts(self, filters: Filters, column: str, *, limit: int) -> list[str | None]:
        """A column of text of what `find` finds: of the rollouts, or `error` of the scores (JSON text, decoded)."""
        left = self._filtered(filters)
        order = [(filters.sort, filters.order), ("id", "ascending")]
        shown = left.take(pc.sort_indices(left, order).slice(0, limit))
        read: dict[str, pa.Table] = {}
        found: list[str | None] = []
        for name, identity, row in zip(*(shown[each].to_pylist() for each in ("part", "id", "row")), strict=True):
            path = Path(name)
            if column == "error":
                if name not in read:
                    read[name] = _columns(path.parent.parent / "scores" / path.name, SCORES, ("trajectory_id", "error"))
                place = pc.index(read[name]["trajectory_id"], identity).as_py()
                text = read[name]["error"][place].as_py() if place >= 0 else None
                found.append(None if text is None else str(json.loads(text)))
            else:
                if name not in read:
                    read[name] = _columns(path, ROLLOUTS, (column,))
                found.append(read[name][column][row].as_py())
        return found

    def rewards(self, split: str = "train") -> list[tuple[int, float]]:
        """Mean reward of every step that has one, by step."""
        return self._counted("rewards", split, self._rewards)

    def _rewards(self, table: pa.Table) -> list[tuple[int, float]]:
        means = table.filter(pc.is_valid(table["reward"])).group_by("step").aggregate([("reward", "mean")])
        means = means.sort_by("step")
        return list(zip(means["step"].to_pylist(), means["reward_mean"].to_pylist(), strict=True))

    def outcomes(self, split: str = "train") -> dict[str, int]:
        """How many trajectories ended how; those that are not scored yet are left out."""
        return self._counted("outcomes", split, self._outcomes)

    def _outcomes(self, table: pa.Table) -> dict[str, int]:
        counts = pc.value_counts(table["outcome"].cast(pa.string())).to_pylist()
        return {each["values"]: each["counts"] for each in counts if each["values"] is not None}

    def _total(self, split: str) -> int:
        return self._counted("total", split, lambda table: table.num_rows)

    def _counted(self, what: str, split: str, count: Callable[[pa.Table], Any]) -> Any:
        return self._once(what, split, self._split(split), count)

    def problems(self, split: str, step: int | None = None) -> pa.Table:
        """One row per problem with a reward: `problem_id`, `reward` (mean), `count`, `last` (its newest step)."""
        table = self._split(split).select(["step", "problem_id", "reward"])
        table = table.filter(pc.is_valid(table["reward"]))
        if step is not None:
            table = table.filter(pc.equal(table["step"], step))
        found = table.group_by("problem_id").aggregate([("reward", "mean"), ("reward", "count"), ("step", "max")])
        return found.select(["problem_id", "reward_mean", "reward_count", "step_max"]).rename_columns(
            ["problem_id", "reward", "count", "last"]
        )

    def newest(self, split: str, problem: str, step: int | None = None) -> Row | None:
        """A trajectory of the newest group of a problem that has a reward, if there is one."""
        filters = Filters(split=split, problem=problem, step=step)
        table = self._filtered(filters)
        table = table.filter(pc.is_valid(table["reward"])).sort_by([("step", "descending"), ("id", "ascending")])
        return next(iter(self._rows(table.slice(0, 1))), None)

    def of_group(self, split: str, step: int | None, group_id: str) -> tuple[Row, ...]:
        """The chains of a group, in their order; none if there is no such group."""
        table = self._filtered(Filters(split=split, step=step))
        return self._rows(table.filter(pc.equal(table["group_id"], group_id)).sort_by("chain"))

    def values(self, name: str) -> list[str]:
        """What stands in a column, sorted."""

        def sort(table: pa.Table) -> list[str]:
            return sorted(
                {value for chunk in table[name].chunks for value in chunk.unique().to_pylist() if value is not None}
            )

        return self._once("values", name, self.table(), sort)

    def group(self, split: str, step: int, group_id: str) -> TrajectoryGroup:
        """A group with its rewards, chains in their order. Raises `UserError` if there is none of that name."""
        directory = self.directory(split, step)
        if step not in self.steps(split):
            raise UserError(f"the run has no step {step}" if split == "train" else f"version {step} was not evaluated")
        for part in read_rollout_manifest(directory).parts:
            if group_id in part.groups:
                found = next(g for g in self._groups(directory.rollouts / part.name, part) if g.id == group_id)
                return _scored(found, directory, part)
        raise UserError(f"step {step} has no group {group_id!r}")

    def _groups(self, path: Path, part: PartInfo) -> list[TrajectoryGroup]:
        """A part whole; the last one is kept, because who looks at a group often looks at its neighbours."""
        key, groups = self._last
        if key != (path, part.sha256):
            groups = read_part(path, part)
            self._last = ((path, part.sha256), groups)
        return groups

    def _listed(self, split: str, step: int) -> list[tuple[str, int, PartInfo, str | None]]:
        directory = self.directory(split, step)
        state = (_stamp(directory.rollout_manifest), _stamp(directory.score_manifest))
        known = self._listings.get(directory.path)
        if known is None or known[0] != state:
            try:
                parts = read_rollout_manifest(directory).parts
                scores = {each.name: each.sha256 for each in _score_parts(directory)}
            except ShardError as error:
                logger.warning("%s %d is left out: %s", "step" if split == "train" else "evaluation", step, error)
                return []
            known = self._listings[directory.path] = (state, [(part, scores.get(part.name)) for part in parts])
        return [(split, step, part, scores) for part, scores in known[1]]

    def _part(self, split: str, step: int, part: PartInfo, scores: str | None) -> pa.Table | None:
        key = f"{split} {step} {part.sha256} {scores}"
        if key not in self._parts:
            directory = self.directory(split, step)
            try:
                found = _read(directory, part, scored=scores is not None)
            except (ShardError, pa.ArrowException, OSError, ValueError, KeyError) as error:
                logger.warning("%s is left out: %s", directory.rollouts / part.name, error)
                return None
            found = found.append_column("split", pa.repeat(split, found.num_rows).dictionary_encode())
            self._parts[key] = found.append_column("step", pa.repeat(pa.scalar(step, pa.int32()), found.num_rows))
        return self._parts[key]

    def _rows(self, table: pa.Table) -> tuple[Row, ...]:
        plain = table.drop_columns(["part", "row"]).to_pylist()
        return tuple(Row(**row, question=question) for row, question in zip(plain, self._questions(table), strict=True))

    def _questions(self, rows: pa.Table) -> list[str]:
        """What the problems of a few rows ask; the column of those parts alone is read."""
        texts: dict[str, pa.Array] = {}
        found = []
        for part, row in zip(rows["part"].to_pylist(), rows["row"].to_pylist(), strict=True):
            if part not in texts:
                texts[part] = _columns(Path(part), ROLLOUTS, ("problem",))["problem"].combine_chunks()
            found.append(_question(texts[part][row].as_py()))
        return found

    def _used(self, table: pa.Table, tool: str) -> pa.Array:
        """Which rows have a message of this tool."""
        # `json` escapes what is not ASCII, `orjson` does not: a part may hold texts of both.
        needles = [f'"name":{json.dumps(tool, ensure_ascii=escaped)}' for escaped in (True, False)]
        used = np.zeros(table.num_rows, bool)
        part_of_row, rows = table["part"].to_numpy(), table["row"].to_numpy()
        for name in np.unique(part_of_row):
            here = part_of_row == name
            if (name, tool) not in self._tools:
                turns = _columns(Path(name), ROLLOUTS, ("turns",))["turns"].combine_chunks()
                self._tools[name, tool] = pc.or_(*(pc.match_substring(turns, needle) for needle in needles))
            used[here] = self._tools[name, tool].to_numpy(zero_copy_only=False)[rows[here]]
        return pa.array(used)


def _read(directory: StepDirectory, part: PartInfo, *, scored: bool) -> pa.Table:
    path = directory.rollouts / part.name
    table = _columns(path, ROLLOUTS, _COLUMNS)
    lengths = table["segment_lengths"].combine_chunks()
    sums = np.concatenate([[0], np.cumsum(lengths.values.to_numpy(), dtype=np.int64)])
    tokens = np.diff(sums[lengths.offsets.to_numpy()])
    count = table.num_rows
    table = table.drop_columns(["segment_lengths"]).append_column("tokens", pa.array(tokens, pa.int64()))
    table = table.append_column("part", pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [str(path)]))
    table = table.append_column("row", pa.array(np.arange(count, dtype=np.int32)))
    outcome, reward = pa.nulls(count, pa.string()), pa.nulls(count, pa.float64())
    if scored:
        scores = _columns(directory.scores / part.name, SCORES, ("trajectory_id", "outcome", "reward"))
        place = pc.index_in(table["id"], scores["trajectory_id"].combine_chunks())
        outcome = scores["outcome"].combine_chunks().take(place.combine_chunks())
        reward = scores["reward"].combine_chunks().take(place.combine_chunks())
    for name in ("stop", "failure_kind"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].dictionary_encode())
    return table.append_column("outcome", outcome.dictionary_encode()).append_column("reward", reward)


def _empty() -> pa.Table:
    words = pa.dictionary(pa.int32(), pa.string())
    fields = [(name, ROLLOUTS.schema.field(name).type) for name in _COLUMNS if name != "segment_lengths"]
    fields += [("tokens", pa.int64()), ("part", words), ("row", pa.int32()), ("outcome", words)]
    return pa.schema([*fields, ("reward", pa.float64()), ("split", words), ("step", pa.int32())]).empty_table()


def _columns(path: Path, kind: TableKind, names: Sequence[str]) -> pa.Table:
    """Some columns of a table file, which have the same place in every version; the others' bytes are not read."""
    included = [kind.schema.get_field_index(name) for name in names]
    # No threads of Arrow's: `_READERS` parts are read at once.
    options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source, options=options).read_all().select(list(names)).replace_schema_metadata(None)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one at the same place."""
    try:
        state = path.stat()
    except OSError:
        return None
    return (state.st_mtime_ns, state.st_ino)


def _question(problem: str) -> str:
    """The last thing that the user says in a problem, on one line."""
    asked = [message for message in load_problem(problem).messages if message.get("role") == "user"]
    words = " ".join(content_text(asked[-1]).split()) if asked else ""
    return words if len(words) <= _QUESTION_LENGTH else words[: _QUESTION_LENGTH - 1] + "…"


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
