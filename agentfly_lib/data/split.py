"""Which problems are held out: a seeded split, and no problem on both sides.

Two rows are the same problem if their conversations are, white space aside. Where most rows share one conversation
(games that differ only in a free column), the whole row is compared instead.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agentfly_lib.data.validate import SourcedProblem
from agentfly_lib.types import Problem

__all__ = ["Duplicate", "Split", "hold_out", "separate", "shuffled_order", "take"]

_T = TypeVar("_T")
_DISTINCT_ENOUGH = 0.5
"""Share of distinct conversations from which on a conversation identifies a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The same problem in two places."""

    kept: str
    """Where the one that stays stands."""
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Training and held-out problems with nothing in common."""

    train: list[SourcedProblem]
    eval: list[SourcedProblem]
    leaked: list[Duplicate]
    """Training rows that stood among the held-out rows too, and were removed."""
    repeated: list[Duplicate]
    """Training rows that repeat an earlier training row; they stay."""
    compared: str
    """`conversation` or `whole row`."""


def shuffled_order(count: int, seed: int | str) -> list[int]:
    """A permutation of `range(count)`: the same on every machine and Python version (only `random()` is used)."""
    draws = random.Random(str(seed))
    keys = [draws.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def hold_out(rows: Sequence[_T], fraction: float, seed: int) -> tuple[list[_T], list[_T]]:
    """Training rows in their order, and a seeded choice of `fraction` of the rows, at least one, in shuffled order."""
    count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
    chosen = shuffled_order(len(rows), f"split/{seed}")[:count]
    held = set(chosen)
    return [row for index, row in enumerate(rows) if index not in held], [rows[index] for index in chosen]


def take(rows: Sequence[_T], count: int | None, seed: int) -> list[_T]:
    """All rows in their order, or the first `count` after a seeded shuffle."""
    if count is None or count >= len(rows):
        return list(rows)
    return [rows[index] for index in shuffled_order(len(rows), f"take/{seed}")[:count]]


def separate(train: Sequence[SourcedProblem], held_out: Sequence[SourcedProblem], *, by_row: bool = False) -> Split:
    """Removes from the training rows what is held out, and finds training rows that repeat.

    by_row: compare whole rows, however distinct the conversations are.
    """
    everything = [*train, *held_out]
    distinct = len({_conversation(row.problem) for row in everything})
    by_conversation = not by_row and distinct >= _DISTINCT_ENOUGH * len(everything)
    key: Callable[[Problem], str] = _conversation if by_conversation else _whole_row
    evaluated = {}
    for row in held_out:
        evaluated.setdefault(key(row.problem), row.where)
    kept: list[SourcedProblem] = []
    leaked: list[Duplicate] = []
    repeated: list[Duplicate] = []
    first: dict[str, str] = {}
    for row in train:
        identity = key(row.problem)
        if identity in evaluated:
            leaked.append(Duplicate(kept=evaluated[identity], other=row.where))
            continue
        earlier = first.setdefault(identity, row.where)
        if earlier != row.where:
            repeated.append(Duplicate(kept=earlier, other=row.where))
        kept.append(row)
    return Split(
        train=kept,
        eval=list(held_out),
        leaked=leaked,
        repeated=repeated,
        compared="conversation" if by_conversation else "whole row",
    )


def _conversation(problem: Problem) -> str:
    return json.dumps([_normal(message) for message in problem.messages], sort_keys=True)


def _whole_row(problem: Problem) -> str:
    # An `id` of its own does not make a row another problem.
    columns = {name: value for name, value in problem.columns.items() if name != "id"}
    return _conversation(problem) + json.dumps(columns, sort_keys=True)


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, list):
        return [_normal(each) for each in value]
    if isinstance(value, dict):
        return {name: _normal(each) for name, each in value.items()}
    return value
