"""A dataset config becomes two files of problems, once.

    <cache>/<fingerprint>/train.arrow, eval.arrow, report.json

The fingerprint covers the config and the content of the sources, so a second call finds the folder and reads nothing
but the sources' bytes. The folder appears whole, by one rename, after every row has been checked; processes that want
the same dataset at the same time wait for the first one.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from agentfly_lib.configs.data import DataConfig, ProblemDataConfig, ShardsDataConfig
from agentfly_lib.data.environment import Progress
from agentfly_lib.data.fingerprint import dataset_fingerprint
from agentfly_lib.data.inputs import DataInput, open_input
from agentfly_lib.data.problems import ProblemFile, read_problems, write_problems
from agentfly_lib.data.split import Split, separate, take
from agentfly_lib.data.validate import SourcedProblem
from agentfly_lib.errors import DataError, ShardError
from agentfly_lib.refs import DatasetRef
from agentfly_lib.store.arrow import TableFile
from agentfly_lib.store.atomic import ensure_directory, read_model, sync_directory, write_model

__all__ = ["DatasetReport", "FileReport", "load_problems", "prepare_dataset", "read_report"]

logger = logging.getLogger(__name__)

_REPORT = "report.json"
_LISTED = 20
_LOCK_TIMEOUT_SECONDS = 3600.0


class FileReport(BaseModel):
    """How a split's file can be recognised."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    sha256: str
    bytes: int

    @property
    def file(self) -> TableFile:
        return TableFile(rows=self.rows, sha256=self.sha256, bytes=self.bytes)


class DatasetReport(BaseModel):
    """`report.json`: what was prepared, and what was found on the way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    fingerprint: str
    train: FileReport
    eval: FileReport
    columns: tuple[str, ...]
    """Free columns that every row has, sorted."""
    compared: str
    """What makes two rows the same problem: `conversation` or `whole row`."""
    leaked: int
    """Training rows that stood among the held-out rows too; removed from training."""
    leaked_rows: tuple[str, ...]
    """The first of them: `<training row> = <held-out row>`."""
    repeated: int
    """Training rows that repeat an earlier one; kept."""
    repeated_rows: tuple[str, ...]


def prepare_dataset(config: DataConfig, cache: Path, progress: Progress | None = None) -> DatasetRef:
    """Reads, checks, splits and stores a dataset under `cache`, or finds it there.

    progress: told of the problems done and of all, where each of them takes its time.

    Raises `DataError` naming file and row of whatever cannot be used, and `ShardError` if the cache cannot be written.
    """
    if isinstance(config, ShardsDataConfig):
        raise DataError(
            "data.type='shards' holds trajectories to imitate (agentfly finetune), not problems to ask; to evaluate "
            "what was trained on them, name a recipe with problems: agentfly evaluate CHECKPOINT --recipe RECIPE"
        )
    source = open_input(config, progress)
    fingerprint = dataset_fingerprint(config, source.contents)
    folder = cache / fingerprint
    report = _find(folder)
    if report is None:
        ensure_directory(cache)
        lock = FileLock(cache / f".{fingerprint}.lock")
        try:
            with lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
                report = _find(folder) or _prepare(config, source, fingerprint, folder)
        except Timeout as error:
            raise DataError(
                f"another process has been preparing {folder} for more than {_LOCK_TIMEOUT_SECONDS:.0f} s; "
                "end it and try again"
            ) from error
    return DatasetRef(
        path=folder,
        fingerprint=fingerprint,
        train_rows=report.train.rows,
        eval_rows=report.eval.rows,
        columns=report.columns,
        duplicates=report.leaked,
    )


def read_report(ref: DatasetRef) -> DatasetReport:
    """The report of a prepared dataset. Raises `ShardError` if it is missing or damaged."""
    path = ref.path / _REPORT
    return read_model(path, DatasetReport, remedy=f"remove {ref.path} to prepare again")


def load_problems(ref: DatasetRef, split: Literal["train", "eval"]) -> ProblemFile:
    """The problems of a split, parsed as they are asked for. Raises `ShardError` naming the file if it is damaged."""
    report = read_report(ref)
    expected = report.train if split == "train" else report.eval
    return read_problems(ref.path / f"{split}.arrow", expected.file)


def _find(folder: Path) -> DatasetReport | None:
    """The report of a folder that is whole. Only sizes are compared here; `load_problems` proves the content."""
    try:
        report = read_model(folder / _REPORT, DatasetReport, remedy="prepare again")
        sizes = [(folder / f"{name}.arrow").stat().st_size for name in ("train", "eval")]
    except (ShardError, OSError):
        return None
    return report if sizes == [report.train.bytes, report.eval.bytes] else None


def _prepare(config: ProblemDataConfig, source: DataInput, fingerprint: str, folder: Path) -> DatasetReport:
    train, held_out = source.read()
    split = separate(train, held_out, by_row=source.by_row)
    if not split.train:
        raise DataError(
            f"all {len(train)} training rows are among the held-out rows too, so nothing is left to train on; "
            f"for example {split.leaked[0].other} = {split.leaked[0].kept}"
        )
    _warn(split)
    return _write(
        folder,
        fingerprint,
        split,
        take(split.train, config.train_problems, config.seed),
        take(split.eval, config.eval_problems, config.seed),
    )


def _write(
    folder: Path, fingerprint: str, split: Split, train: Sequence[SourcedProblem], held_out: Sequence[SourcedProblem]
) -> DatasetReport:
    unfinished = folder.with_name(f".{folder.name}.tmp")
    for stale in (unfinished, folder):  # what a killed process left, or a folder that is not whole
        if stale.exists():
            logger.warning("%s is not a whole dataset and is made again", stale)
            shutil.rmtree(stale)
    files = {
        name: write_problems(unfinished / f"{name}.arrow", (row.problem for row in rows))
        for name, rows in (("train", train), ("eval", held_out))
    }
    report = DatasetReport(
        fingerprint=fingerprint,
        train=_file_report(files["train"]),
        eval=_file_report(files["eval"]),
        columns=_common_columns([*train, *held_out]),
        compared=split.compared,
        leaked=len(split.leaked),
        leaked_rows=tuple(f"{each.other} = {each.kept}" for each in split.leaked[:_LISTED]),
        repeated=len(split.repeated),
        repeated_rows=tuple(f"{each.other} = {each.kept}" for each in split.repeated[:_LISTED]),
    )
    write_model(unfinished / _REPORT, report)
    os.replace(unfinished, folder)
    sync_directory(folder.parent)
    return report


def _file_report(file: TableFile) -> FileReport:
    return FileReport(rows=file.rows, sha256=file.sha256, bytes=file.bytes)


def _common_columns(rows: Sequence[SourcedProblem]) -> tuple[str, ...]:
    common = set(rows[0].problem.columns)
    for row in rows:
        common &= row.problem.columns.keys()
    return tuple(sorted(common))


def _warn(split: Split) -> None:
    if split.leaked:
        logger.warning(
            "%d training rows are also among the held-out rows and are left out of training, for example %s = %s",
            len(split.leaked),
            split.leaked[0].other,
            split.leaked[0].kept,
        )
    if split.repeated:
        logger.warning(
            "%d training rows repeat an earlier one, for example %s = %s",
            len(split.repeated),
            split.repeated[0].other,
            split.repeated[0].kept,
        )
