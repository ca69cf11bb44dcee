"""The rollouts of one step: which groups were asked for, which are on disk, and what was given up.

A part is durable when its rename is; the manifest follows it. `RolloutStore.open` therefore adopts parts that a killed
writer renamed but did not list, deletes what it did not rename, and goes on. A group counts once: the first part that
holds it wins, later copies (a late answer after a retry) are counted as duplicates and read by nobody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator

from agentfly_lib.errors import LedgerError, ShardError
from agentfly_lib.store.arrow import REDO
from agentfly_lib.store.atomic import ensure_directory, read_model, remove_leftovers, write_bytes
from agentfly_lib.store.changes import changed
from agentfly_lib.store.layout import StepDirectory, check_part_names, part_name
from agentfly_lib.store.shards import PartInfo, inspect_part, read_index, read_part, write_part
from agentfly_lib.types import TrajectoryGroup

__all__ = [
    "RolloutManifest",
    "RolloutStore",
    "iter_groups",
    "load_manifest",
    "read_rollout_manifest",
    "save_manifest",
]

logger = logging.getLogger(__name__)
_Manifest = TypeVar("_Manifest", bound=BaseModel)


class RolloutManifest(BaseModel):
    """`rollouts/MANIFEST.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    step: int
    policy_version: int
    """Version of the weights that the collection started with."""
    chains: int
    """Trajectories per group."""
    group_ids: tuple[str, ...]
    """Every group that was asked for, one per problem."""
    refills: tuple[int, ...] = ()
    """How many of them, the last ones, were asked for later, time by time, in place of groups without a signal."""
    attempt: int = 0
    """How often the collection was started again."""
    parts: tuple[PartInfo, ...] = ()
    dropped_groups: dict[str, str] = {}
    """Groups that were given up, with the reason."""
    duplicates: int = 0
    """Groups that came a second time and were ignored."""
    complete: bool = False

    @field_validator("parts")
    @classmethod
    def _named_parts(cls, parts: tuple[PartInfo, ...]) -> tuple[PartInfo, ...]:
        check_part_names(part.name for part in parts)
        return parts

    @property
    def problems(self) -> int:
        return len(self.group_ids)

    @property
    def first_group_ids(self) -> tuple[str, ...]:
        """Groups that were asked for at the beginning."""
        return self.group_ids[: len(self.group_ids) - sum(self.refills)]

    @property
    def requested(self) -> int:
        """Trajectories asked for."""
        return self.problems * self.chains

    @property
    def done(self) -> frozenset[str]:
        """Groups that lie in a part."""
        return frozenset(group for part in self.parts for group in part.groups)

    @property
    def trajectories(self) -> int:
        """Trajectories that lie in a part, each counted once."""
        return len(self.done) * self.chains

    def first_groups(self) -> Iterator[tuple[PartInfo, frozenset[str]]]:
        """Every part with the groups that it is the first to hold."""
        seen: set[str] = set()
        for part in self.parts:
            yield part, frozenset(part.groups) - seen
            seen.update(part.groups)


class RolloutStore:
    """Writes the groups of one step or evaluation as they finish, from any thread of the one process that may write."""

    def __init__(self, directory: StepDirectory, manifest: RolloutManifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._asked, self._done = set(manifest.group_ids), set(manifest.done)  # kept, because every part looks them up
        self._next_part = 1 + max((int(Path(part.name).stem.split("-")[1]) for part in manifest.parts), default=-1)
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        directory: StepDirectory,
        *,
        step: int,
        policy_version: int,
        group_ids: Sequence[str],
        chains: int,
        oldest_version: int | None = None,
    ) -> RolloutStore:
        """Starts a collection, or goes on with the one that is there, keeping its complete groups.

        What is there must have been started with `policy_version`, or with one from `oldest_version` on.

        Raises `ShardError` if what is there belongs to another collection or a file of it is damaged.
        """
        if len(set(group_ids)) != len(group_ids):
            raise ValueError("group ids must be unique within a collection")
        asked = RolloutManifest(step=step, policy_version=policy_version, chains=chains, group_ids=tuple(group_ids))
        ensure_directory(directory.rollouts)
        leftovers = remove_leftovers(directory.rollouts)
        if leftovers:
            logger.info("%s: removed %d unfinished files of an interrupted run", directory.rollouts, leftovers)
        if not directory.rollout_manifest.exists():
            _refuse_unlisted(directory)
            save_manifest(directory.rollout_manifest, asked)
            return cls(directory, asked)
        manifest = read_rollout_manifest(directory)
        if oldest_version is not None and oldest_version <= manifest.policy_version <= policy_version:
            asked = asked.model_copy(update={"policy_version": manifest.policy_version})
        _check_same(directory, manifest, asked)
        if not manifest.complete:
            manifest = _recover(directory, manifest)
        return cls(directory, manifest)

    @property
    def manifest(self) -> RolloutManifest:
        return self._manifest

    @property
    def complete(self) -> bool:
        return self._manifest.complete

    @property
    def done(self) -> frozenset[str]:
        """Groups that need no more work."""
        return frozenset(self._done)

    @property
    def missing(self) -> tuple[str, ...]:
        """Groups still to be collected, in the order they were asked for; none once the collection is complete."""
        if self._manifest.complete:
            return ()
        return tuple(group for group in self._manifest.group_ids if group not in self._done)

    def append(self, groups: Sequence[TrajectoryGroup]) -> PartInfo | None:
        """Makes groups durable as one part. Groups that are there already are ignored; None if nothing was new.

        Raises `ValueError` for a group that was not asked for or that does not have every chain once, and `ShardError`
        if the file system refuses (the groups are then not counted, everything before is intact).
        """
        with self._lock:
            new = self._only_new(groups)
            duplicates = self._manifest.duplicates + len(groups) - len(new)
            info = None
            if new:
                path = self._directory.rollouts / part_name(self._next_part)
                info = write_part(path, new, step=self._manifest.step, attempt=self._manifest.attempt)
                self._next_part += 1
                self._save(parts=(*self._manifest.parts, info), duplicates=duplicates)
                self._done.update(group.id for group in new)
            elif duplicates != self._manifest.duplicates:
                self._save(duplicates=duplicates)
            return info

    def extend(self, group_ids: Sequence[str]) -> None:
        """Asks for further groups, durably, before the collection is complete.

        Raises `ValueError` if it is complete, or one of them was asked for before.
        """
        with self._lock:
            asked = (*self._manifest.group_ids, *group_ids)
            if self._manifest.complete or len(set(asked)) != len(asked) or not group_ids:
                raise ValueError(f"{self._directory.rollouts} cannot be extended by {list(group_ids)}")
            self._save(group_ids=asked, refills=(*self._manifest.refills, len(group_ids)))
            self._asked.update(group_ids)

    def finish(self, dropped: Mapping[str, str] | None = None) -> RolloutManifest:
        """Declares the collection complete. `dropped` gives the reason for every group that was given up.

        Raises `LedgerError` if a group is neither on disk nor dropped, or both.
        """
        with self._lock:
            if self._manifest.complete:
                return self._manifest
            dropped = dict(dropped or {})
            missing, both = set(self.missing) - dropped.keys(), self.done & dropped.keys()
            if missing or both or not dropped.keys() <= set(self._manifest.group_ids):
                raise LedgerError(
                    f"{self._directory.rollouts}: the collection does not add up: neither collected nor dropped "
                    f"{sorted(missing) or 'none'}, both {sorted(both) or 'none'}, "
                    f"not asked for {sorted(dropped.keys() - set(self._manifest.group_ids)) or 'none'}"
                )
            self._save(dropped_groups=dropped, complete=True)
            return self._manifest

    def _only_new(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        dropped = self._manifest.dropped_groups.keys() if self._manifest.complete else ()
        new: dict[str, TrajectoryGroup] = {}
        for group in groups:
            if group.id not in self._asked:
                raise ValueError(f"group {group.id} was not asked for in {self._directory.rollouts}")
            chains = sorted(trajectory.chain for trajectory in group.trajectories)
            if chains != list(range(self._manifest.chains)):
                raise ValueError(
                    f"group {group.id} has the chains {chains}, expected each of 0..{self._manifest.chains - 1}"
                )
            if group.id in self._done or group.id in dropped or group.id in new:
                logger.warning("%s: group %s came a second time and is ignored", self._directory.rollouts, group.id)
                continue
            new[group.id] = group
        return list(new.values())

    def _save(self, **changes: object) -> None:
        manifest = self._manifest.model_copy(update=changes)
        save_manifest(self._directory.rollout_manifest, manifest)
        self._manifest = manifest


def read_rollout_manifest(directory: StepDirectory) -> RolloutManifest:
    """Reads `rollouts/MANIFEST.json`. Raises `ShardError` if it is missing, damaged or of another version."""
    return load_manifest(directory.rollout_manifest, RolloutManifest)


def save_manifest(path: Path, manifest: BaseModel) -> None:
    """Writes a manifest of any kind, and tells who follows it.

    It is written anew with every part; for one of thousands of groups `write_model` would take longer than the part.
    A manifest has no floats, so there is nothing that `write_model` would refuse.
    """
    write_bytes(path, (manifest.model_dump_json(indent=1) + "\n").encode())
    changed(path)


def load_manifest(path: Path, model: type[_Manifest]) -> _Manifest:
    """Reads a manifest of any kind. Raises `ShardError` naming the file and what is wrong in it."""
    return read_model(path, model, remedy=f"use the release that wrote it, or {REDO}")


def iter_groups(
    directory: StepDirectory, manifest: RolloutManifest
) -> Iterator[tuple[PartInfo, list[TrajectoryGroup]]]:
    """Every group once, part by part, each part checked against the manifest. Raises `ShardError`."""
    for part, first in manifest.first_groups():
        groups = read_part(directory.rollouts / part.name, part)
        yield part, [group for group in groups if group.id in first]


def _refuse_unlisted(directory: StepDirectory) -> None:
    # The manifest is written before the first part: parts without one mean that somebody removed it.
    parts = sorted(path.name for path in directory.rollouts.glob("part-*.arrow"))
    if parts:
        raise ShardError(
            f"{directory.rollout_manifest} is missing but {len(parts)} parts are there ({parts[0]}, ...); "
            f"restore the manifest, or move {directory.rollouts} away to collect this step again"
        )


def _check_same(directory: StepDirectory, there: RolloutManifest, asked: RolloutManifest) -> None:
    differing = [
        f"{name} {getattr(there, name)} there, {getattr(asked, name)} asked for"
        for name in ("step", "policy_version", "chains")
        if getattr(there, name) != getattr(asked, name)
    ]
    first = there.first_group_ids
    if len(first) != asked.problems:
        differing.append(f"problems {len(first)} there, {asked.problems} asked for")
    if not differing and set(first) != set(asked.group_ids):
        differing = [f"other groups there, for example {min(set(first) ^ set(asked.group_ids))}"]
    if differing:
        raise ShardError(
            f"{directory.rollouts} holds another collection: {'; '.join(differing)}; "
            "use another run name, or move the directory away"
        )


def _recover(directory: StepDirectory, manifest: RolloutManifest) -> RolloutManifest:
    """Checks the listed parts and adopts complete ones that are not listed."""
    for part in manifest.parts:
        read_index(directory.rollouts / part.name, part)
    listed = {part.name for part in manifest.parts}
    parts, duplicates, done = list(manifest.parts), manifest.duplicates, set(manifest.done)
    for path in sorted(directory.rollouts.glob("part-*.arrow")):
        if path.name in listed:
            continue
        part = inspect_part(path, step=manifest.step)
        _check_adoptable(path, manifest)
        duplicates += len(done & set(part.groups))
        done |= set(part.groups)
        parts.append(part)
        logger.info("%s: kept %d groups of an interrupted run", path, len(part.groups))
    recovered = manifest.model_copy(
        update={"parts": tuple(parts), "duplicates": duplicates, "attempt": manifest.attempt + 1}
    )
    save_manifest(directory.rollout_manifest, recovered)
    return recovered


def _check_adoptable(path: Path, manifest: RolloutManifest) -> None:
    index = read_index(path)
    chains: dict[str, list[int]] = {}
    for group, chain in zip(index.group_ids, index.chains, strict=True):
        chains.setdefault(group, []).append(chain)
    for group, found in chains.items():
        if group not in manifest.group_ids or sorted(found) != list(range(manifest.chains)):
            raise ShardError(
                f"{path}: group {group} with chains {found} does not belong to this collection; move the file away"
            )
