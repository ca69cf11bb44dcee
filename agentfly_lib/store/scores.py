"""Rewards beside the shards: one score file per rollout part, so that scoring again never generates again.

A score file names the checksum of the part that it scored; if the part is another one now, its scores no longer count.
Scoring with another reward moves the present scores to `scores-<old reward>/` and starts anew.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, field_validator

from agentfly_lib.errors import LedgerError, ShardError
from agentfly_lib.store.arrow import TableFile, TableKind, file_sha256, read_table, table_metadata, write_table
from agentfly_lib.store.atomic import ensure_directory, remove_leftovers, sync_directory
from agentfly_lib.store.layout import StepDirectory, check_part_names
from agentfly_lib.store.manifest import RolloutManifest, load_manifest, read_rollout_manifest, save_manifest
from agentfly_lib.store.score import Score, outcome_of
from agentfly_lib.store.shards import PartIndex, PartInfo, read_index
from agentfly_lib.store.turns import dump_json
from agentfly_lib.types import Outcome

__all__ = [
    "SCORES",
    "ScoreManifest",
    "ScorePart",
    "ScoreStore",
    "read_score_manifest",
    "read_scores",
    "write_scores",
]

logger = logging.getLogger(__name__)

SCORES = TableKind(
    name="scores",
    version=1,
    schema=pa.schema(
        [
            ("trajectory_id", pa.string()),
            ("outcome", pa.string()),
            ("reward", pa.float64()),
            ("parts", pa.string()),  # JSON
            ("seconds", pa.float64()),
            ("error", pa.string()),  # JSON text, so that any character survives
        ]
    ),
)


class ScorePart(BaseModel):
    """How the manifest knows the scores of one rollout part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the rollout part, and of the score file."""
    rows: int
    sha256: str
    bytes: int
    rollouts_sha256: str
    """Checksum of the part that was scored."""

    @property
    def file(self) -> TableFile:
        return TableFile(rows=self.rows, sha256=self.sha256, bytes=self.bytes)


class ScoreManifest(BaseModel):
    """`scores/MANIFEST.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    reward: str
    parts: tuple[ScorePart, ...] = ()
    complete: bool = False
    counts: dict[Outcome, int] = {}
    """Trajectories by outcome, set when complete; groups that the collection gave up count as dropped."""

    @field_validator("parts")
    @classmethod
    def _named_parts(cls, parts: tuple[ScorePart, ...]) -> tuple[ScorePart, ...]:
        check_part_names(part.name for part in parts)
        return parts


def write_scores(path: Path, scores: Sequence[Score], *, reward: str, rollouts_sha256: str = "") -> ScorePart:
    """Writes the scores of one part durably. Raises `ShardError` if the file system refuses."""
    columns = {
        "trajectory_id": pa.array([score.trajectory_id for score in scores], pa.string()),
        "outcome": pa.array([score.outcome.value for score in scores], pa.string()),
        "reward": pa.array([score.reward for score in scores], pa.float64()),
        "parts": pa.array([dump_json(dict(score.parts), score.trajectory_id) for score in scores], pa.string()),
        "seconds": pa.array([score.seconds for score in scores], pa.float64()),
        "error": pa.array([None if score.error is None else json.dumps(score.error) for score in scores], pa.string()),
    }
    table = pa.Table.from_arrays([columns[name] for name in SCORES.schema.names], schema=SCORES.schema)
    written = write_table(path, table, SCORES, {"reward": reward, "rollouts": rollouts_sha256})
    return ScorePart(
        name=path.name,
        rows=written.rows,
        sha256=written.sha256,
        bytes=written.bytes,
        rollouts_sha256=rollouts_sha256,
    )


def read_scores(path: Path, expected: ScorePart | None = None) -> list[Score]:
    """Reads the scores of one part. Raises `ShardError` naming the file if it is damaged or not what is expected."""
    table = read_table(path, SCORES, None if expected is None else expected.file)
    return [
        Score(
            trajectory_id=row["trajectory_id"],
            outcome=Outcome(row["outcome"]),
            reward=row["reward"],
            parts=json.loads(row["parts"]),
            seconds=row["seconds"],
            error=None if row["error"] is None else json.loads(row["error"]),
        )
        for row in table.to_pylist()
    ]


class ScoreStore:
    """Writes the scores of a step under one reward, part by part, beside the rollouts."""

    def __init__(self, directory: StepDirectory, reward: str) -> None:
        """Goes on with the scores that are there; those of another reward are kept under `scores-<its name>/`.

        Raises `ShardError` if a file that is there is damaged.
        """
        self._directory = directory
        self._reward = reward
        self._lock = threading.Lock()
        self._outcomes: dict[ScorePart, list[tuple[str, Outcome]]] = {}
        """Group and outcome of every trajectory of the parts that this store has written itself."""
        self._manifest = self._open()

    @property
    def manifest(self) -> ScoreManifest:
        return self._manifest

    @property
    def complete(self) -> bool:
        return self._manifest.complete

    def missing_parts(self, rollouts: RolloutManifest) -> list[PartInfo]:
        """Rollout parts that have no scores yet, or whose scores speak of other content."""
        scored = {part.name: part.rollouts_sha256 for part in self._manifest.parts}
        return [part for part in rollouts.parts if scored.get(part.name) != part.sha256]

    def append(self, part_name: str, scores: Sequence[Score]) -> ScorePart:
        """Makes the scores of one rollout part durable.

        Raises `ValueError` unless there is exactly one score for every trajectory of the part with the outcome that
        follows from its stop reason and reward, and `ShardError` for damaged or unwritable files.
        """
        part = self._rollout_part(part_name)
        index = read_index(self._directory.rollouts / part_name, part)
        _check_scores(self._directory.rollouts / part_name, index, scores)
        with self._lock:
            others = tuple(other for other in self._manifest.parts if other.name != part_name)
            if len(others) < len(self._manifest.parts):
                # A listed file must never differ from its listing, not even between two writes.
                self._save(parts=others, complete=False, counts={})
            written = write_scores(
                self._directory.scores / part_name, scores, reward=self._reward, rollouts_sha256=part.sha256
            )
            parts = tuple(sorted((*others, written), key=lambda each: each.name))
            self._save(parts=parts, complete=False, counts={})
            self._outcomes[written] = _by_group(index, scores)
        return written

    def finish(self, rollouts: RolloutManifest) -> ScoreManifest:
        """Declares the scores complete and counts outcomes: of parts that an earlier process wrote, from the files.

        Raises `LedgerError` if the collection is not complete or a part has no scores.
        """
        missing = [part.name for part in self.missing_parts(rollouts)]
        if missing or not rollouts.complete:
            raise LedgerError(
                f"{self._directory.scores}: cannot be complete, parts without scores: {', '.join(missing) or 'none'}; "
                f"collection complete: {rollouts.complete}"
            )
        counts: Counter[Outcome] = Counter(dict.fromkeys(Outcome, 0))
        by_name = {part.name: part for part in self._manifest.parts}
        for part, first in rollouts.first_groups():
            written = by_name[part.name]
            outcomes = self._outcomes.get(written) or _by_group(
                read_index(self._directory.rollouts / part.name, part),
                read_scores(self._directory.scores / part.name, written),
            )
            counts.update(outcome for group, outcome in outcomes if group in first)
        counts[Outcome.DROPPED] += len(rollouts.dropped_groups) * rollouts.chains
        with self._lock:
            self._save(complete=True, counts=dict(counts))
        return self._manifest

    def _open(self) -> ScoreManifest:
        scores = self._directory.scores
        if self._directory.score_manifest.exists():
            manifest = read_score_manifest(self._directory)
            if manifest.reward == self._reward:
                remove_leftovers(scores)
                return self._adopt(manifest)
            archive = self._directory.archived_scores(manifest.reward)
            logger.info("%s: scores of reward %s are kept in %s", scores, manifest.reward, archive.name)
            scores.rename(archive)
            sync_directory(self._directory.path)
        manifest = ScoreManifest(reward=self._reward)
        ensure_directory(scores)
        remove_leftovers(scores)
        save_manifest(self._directory.score_manifest, manifest)
        return manifest

    def _adopt(self, manifest: ScoreManifest) -> ScoreManifest:
        """Lists score files that a killed writer renamed but did not list."""
        listed = {part.name for part in manifest.parts}
        found: list[ScorePart] = []
        for path in sorted(self._directory.scores.glob("part-*.arrow")):
            if path.name in listed:
                continue
            header = table_metadata(read_table(path, SCORES))
            if header["reward"] == self._reward:
                found.append(
                    ScorePart(
                        name=path.name,
                        rows=int(header["rows"]),
                        sha256=file_sha256(path),
                        bytes=path.stat().st_size,
                        rollouts_sha256=header["rollouts"],
                    )
                )
        if not found:
            return manifest
        parts = tuple(sorted((*manifest.parts, *found), key=lambda each: each.name))
        manifest = manifest.model_copy(update={"parts": parts, "complete": False, "counts": {}})
        save_manifest(self._directory.score_manifest, manifest)
        return manifest

    def _rollout_part(self, name: str) -> PartInfo:
        for part in read_rollout_manifest(self._directory).parts:
            if part.name == name:
                return part
        raise ShardError(f"{self._directory.rollout_manifest} lists no part {name}")

    def _save(self, **changes: object) -> None:
        manifest = self._manifest.model_copy(update=changes)
        save_manifest(self._directory.score_manifest, manifest)
        self._manifest = manifest


def read_score_manifest(directory: StepDirectory) -> ScoreManifest:
    """Reads `scores/MANIFEST.json`. Raises `ShardError` if it is missing, damaged or of another version."""
    return load_manifest(directory.score_manifest, ScoreManifest)


def _by_group(index: PartIndex, scores: Sequence[Score]) -> list[tuple[str, Outcome]]:
    outcomes = {score.trajectory_id: score.outcome for score in scores}
    return [(group, outcomes[identity]) for identity, group in zip(index.ids, index.group_ids, strict=True)]


def _check_scores(path: Path, index: PartIndex, scores: Sequence[Score]) -> None:
    stops = dict(zip(index.ids, index.stops, strict=True))
    found = Counter(score.trajectory_id for score in scores)
    if found != Counter(stops.keys()):
        wrong = sorted((found - Counter(stops.keys())) + (Counter(stops.keys()) - found))
        raise ValueError(f"{path} needs exactly one score per trajectory; missing, doubled or unknown: {wrong}")
    for score in scores:
        right = outcome_of(stops[score.trajectory_id], score.reward)
        if score.outcome is not right:
            raise ValueError(f"trajectory {score.trajectory_id} is {right}, not {score.outcome}")
