"""Two runs against each other: the problems that both have rewards for, and where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute

from agentfly_lib.errors import UserError
from agentfly_lib.viewer.web.shelf import Shelf

__all__ = ["PAIR_SORTS", "Pair", "PairPage", "pair_problems"]

pc: Any = pyarrow.compute  # its functions are made when it is imported, where a type checker does not see them

PairSort = Literal["difference", "worse first", "better first"]
PAIR_SORTS: tuple[PairSort, ...] = ("difference", "worse first", "better first")
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One problem in both runs. Rewards are means over all its trajectories in the chosen split and step."""

    problem: str
    question: str
    reward: float
    other_reward: float
    count: int
    other_count: int

    @property
    def difference(self) -> float:
        return self.other_reward - self.reward


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPage:
    """Some of the common problems, and what is true of all of them."""

    pairs: tuple[Pair, ...]
    found: int
    common: int
    better: int
    """Problems on which the other run has the higher reward."""
    worse: int
    mean_difference: float | None
    offset: int


def pair_problems(
    one: Shelf,
    other: Shelf,
    *,
    split: str,
    step: int | None = None,
    differing: bool = False,
    sort: str = "difference",
    offset: int = 0,
    limit: int = 50,
) -> PairPage:
    """Pairs the problems of a split; for held-out ones without a step, of the newest version that both evaluated.

    Raises `UserError` for a split or an order that there is not.
    """
    if sort not in PAIR_SORTS:
        raise UserError(f"pairs cannot be sorted by {sort!r}; use one of {', '.join(PAIR_SORTS)}")
    if step is None and split != "train":
        step = max(set(one.catalog.steps(split)) & set(other.catalog.steps(split)), default=None)
    mine, theirs = one.catalog.problems(split, step), other.catalog.problems(split, step)
    both = mine.join(theirs, "problem_id", join_type="inner", right_suffix="_other")
    difference = pc.subtract(both["reward_other"], both["reward"])
    both = both.append_column("difference", difference).append_column("size", pc.abs(difference))
    shown = both.filter(pc.greater(both["size"], _SAME)) if differing else both
    keys = {"difference": ("size", "descending"), "worse first": ("difference", "ascending")}
    shown = shown.sort_by([keys.get(sort, ("difference", "descending")), ("problem_id", "ascending")])
    return PairPage(
        pairs=tuple(_pair(one, split, step, row) for row in shown.slice(offset, limit).to_pylist()),
        found=shown.num_rows,
        common=both.num_rows,
        better=_count(pc.greater(both["difference"], _SAME)),
        worse=_count(pc.less(both["difference"], -_SAME)),
        mean_difference=pc.mean(both["difference"]).as_py(),
        offset=offset,
    )


def _pair(one: Shelf, split: str, step: int | None, row: dict[str, Any]) -> Pair:
    newest = one.catalog.newest(split, row["problem_id"], step)
    return Pair(
        problem=row["problem_id"],
        question="" if newest is None else newest.question,
        reward=row["reward"],
        other_reward=row["reward_other"],
        count=row["count"],
        other_count=row["count_other"],
    )


def _count(true: pa.ChunkedArray) -> int:
    return pc.sum(true).as_py() or 0
