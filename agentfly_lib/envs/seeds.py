"""Problems of environments that make an episode of any seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

__all__ = ["endless_seeds"]

_HELD_OUT = 2**30
"""The held-out seeds are so far away from those of training."""


def endless_seeds(question: str, first: int, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """One problem for each seed, without end; splits share none."""
    seeds = itertools.count(first if split == "train" else first + _HELD_OUT)
    return ({"question": question, "seed": seed} for seed in seeds)
