"""What a data config reads: the hash of each source, and the checked problems when somebody wants them.

Hashing and reading are apart, so that a prepared dataset is recognised without parsing a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from agentfly_lib.configs.data import (
    ArithmeticDataConfig,
    ColoursDataConfig,
    EnvironmentDataConfig,
    FilesDataConfig,
    Gsm8kDataConfig,
    HubDataConfig,
    ProblemDataConfig,
)
from agentfly_lib.data import colours
from agentfly_lib.data.arithmetic import WordProblem, train_and_held_out
from agentfly_lib.data.environment import Progress, environment_contents, environment_problems
from agentfly_lib.data.fingerprint import content_sha256
from agentfly_lib.data.gsm8k import read_gsm8k
from agentfly_lib.data.hub import load_split
from agentfly_lib.data.images import image_access, image_files_sha256
from agentfly_lib.data.problems import content_id
from agentfly_lib.data.split import hold_out
from agentfly_lib.data.validate import RowFormat, SourcedProblem, build_problems
from agentfly_lib.envs.spec import configured_environment
from agentfly_lib.errors import DataError
from agentfly_lib.rows.sources import read_rows
from agentfly_lib.tools.images import data_url
from agentfly_lib.types import Message, Problem

__all__ = ["DataInput", "open_input"]

_Problems = list[SourcedProblem]
_Row = tuple[str, dict[str, str]]
"""A generated question and its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInput:
    """The sources of one dataset."""

    contents: Mapping[str, str]
    """What identifies each source, its hash above all; empty where the config alone decides."""
    read: Callable[[], tuple[_Problems, _Problems]]
    """Training and held-out problems, checked, before duplicates are removed. Raises `DataError`."""
    by_row: bool = False
    """What makes two rows the same problem is the whole row, whatever their conversations say."""


def open_input(config: ProblemDataConfig, progress: Progress | None = None) -> DataInput:
    """Finds and hashes the sources of a config. `progress` is told of problems that take their time.

    Raises `DataError` naming the source that cannot be read.
    """
    match config:
        case FilesDataConfig():
            return _files(config)
        case HubDataConfig():
            return _hub(config)
        case Gsm8kDataConfig():
            return _gsm8k(config)
        case ArithmeticDataConfig():
            return DataInput(contents={}, read=lambda: _arithmetic(config))
        case ColoursDataConfig():
            return DataInput(contents={}, read=lambda: _colours(config), by_row=True)
        case EnvironmentDataConfig():
            return _environment(config, progress)
        case _:
            assert_never(config)


def _files(config: FilesDataConfig) -> DataInput:
    paths = {"train": config.train} if config.eval is None else {"train": config.train, "eval": config.eval}

    def read_split(path: Path) -> _Problems:
        row_format = RowFormat(
            question_column=config.question_column,
            messages_column=config.messages_column,
            images=image_access(config.images, path.parent),
        )
        return build_problems(read_rows(path), row_format, source=str(path), max_errors=config.max_row_errors)

    def read() -> tuple[_Problems, _Problems]:
        train = read_split(config.train)
        if config.eval is not None:
            return train, read_split(config.eval)
        return _hold_out(train, config.eval_fraction, config.seed, str(config.train))

    contents = _hashes(paths)
    for role, path in paths.items():
        if images := image_files_sha256(path, image_access(config.images, path.parent)):
            contents[f"{role} images"] = images
    return DataInput(contents=contents, read=read)


def _gsm8k(config: Gsm8kDataConfig) -> DataInput:
    def read_split(path: Path) -> _Problems:
        return build_problems(read_gsm8k(path), RowFormat(), source=str(path))

    return DataInput(
        contents=_hashes({"train": config.train, "eval": config.eval}),
        read=lambda: (read_split(config.train), read_split(config.eval)),
    )


def _hub(config: HubDataConfig) -> DataInput:
    row_format = RowFormat(
        question_column=config.question_column,
        messages_column=config.messages_column,
        images=image_access(config.images),
    )
    names = [config.train_split] if config.eval_split is None else [config.train_split, config.eval_split]
    splits = [load_split(config, name) for name in names]

    def read() -> tuple[_Problems, _Problems]:
        problems = [build_problems(split.rows(), row_format, source=split.source) for split in splits]
        if len(problems) == 2:
            return problems[0], problems[1]
        return _hold_out(problems[0], config.eval_fraction, config.seed, splits[0].source)

    contents = {role: split.sha256() for role, split in zip(("train", "eval"), splits, strict=False)}
    return DataInput(contents=contents, read=read)


def _environment(config: EnvironmentDataConfig, progress: Progress | None) -> DataInput:
    spec = configured_environment(config, where="data")

    def read() -> tuple[_Problems, _Problems]:
        train = environment_problems(
            spec, "train", config.train_problems, instances=config.instances, progress=progress
        )
        return train, environment_problems(
            spec, "eval", config.eval_problems, instances=config.instances, progress=progress
        )

    # The columns say which episode it is; games that look alike at first may still be different ones.
    return DataInput(contents=environment_contents(spec), read=read, by_row=True)


def _arithmetic(config: ArithmeticDataConfig) -> tuple[_Problems, _Problems]:
    def rows(problems: Sequence[WordProblem]) -> list[_Row]:
        return [(problem.question, {"answer": problem.answer}) for problem in problems]

    train, held_out = train_and_held_out(config)
    return _generated(rows(train), "training"), _generated(rows(held_out), "held-out")


def _colours(config: ColoursDataConfig) -> tuple[_Problems, _Problems]:
    def rows(problems: Sequence[colours.ColourProblem]) -> list[_Row]:
        return [
            (colours.QUESTION, {"answer": problem.answer, "picture": data_url(problem.picture)}) for problem in problems
        ]

    train, held_out = colours.train_and_held_out(config)
    return _generated(rows(train), "training"), _generated(rows(held_out), "held-out")


def _generated(rows: Sequence[_Row], kind: str) -> _Problems:
    problems: _Problems = []
    for number, (question, columns) in enumerate(rows, start=1):
        messages: tuple[Message, ...] = ({"role": "user", "content": question},)
        problem = Problem(id=content_id(messages, columns), messages=messages, columns=columns)
        problems.append(SourcedProblem(problem=problem, where=f"generated {kind} problem {number}"))
    return problems


def _hold_out(rows: _Problems, fraction: float, seed: int, source: str) -> tuple[_Problems, _Problems]:
    if len(rows) < 2:
        raise DataError(
            f"{source} has {len(rows)} row; at least 2 are needed to hold some out; add rows, or give held-out rows"
        )
    return hold_out(rows, fraction, seed)


def _hashes(paths: Mapping[str, Path]) -> dict[str, str]:
    # The suffix counts: it says how the same bytes are read.
    return {role: content_sha256(path) + path.suffix.lower() for role, path in paths.items()}
