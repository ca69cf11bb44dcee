"""Names and values of metrics: `area/name/stat`, in the letters MLflow accepts, finite.

MLflow takes letters, digits, space and `/ : . - _`, at most 250 of them, and a name that is a normal relative path.
Names of our own are written that way; what comes from outside (a reward's parts, a user's metrics) may not be. So all
go through a `NameTable`, which cleans them and never lets two different names end as one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "MAX_NAME_LENGTH",
    "NONFINITE_COUNT",
    "FiniteMetrics",
    "NameTable",
    "finite_metrics",
    "valid_name",
]

MAX_NAME_LENGTH = 250
NONFINITE_COUNT = "tracking/nonfinite/count"
"""Values left out since the run's process started because they were NaN or infinite."""

_VALID = re.compile(r"[A-Za-z0-9 :._-]+(/[A-Za-z0-9 :._-]+)*")
_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9 /:._-]")
_READABLE = {"@": "_at_", "%": "_percent", "#": "_number_", "+": "_plus_", "=": "_is_", "<": "_below_", ">": "_above_"}
_HASH_LENGTH = 8


def valid_name(name: str) -> bool:
    """Whether MLflow takes `name` as it is."""
    parts = name.split("/")
    normal = not {".", ".."} & set(parts) and not name.startswith("..")
    return len(name) <= MAX_NAME_LENGTH and _VALID.fullmatch(name) is not None and normal


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteMetrics:
    """What of a set of metrics can be stored."""

    values: dict[str, float]
    nonfinite: tuple[str, ...]
    """Names whose value was NaN or infinite."""


def finite_metrics(metrics: Mapping[str, float]) -> FiniteMetrics:
    """Split off what MLflow cannot store faithfully: it turns infinity into 1.8e308 and plots NaN as nothing."""
    values: dict[str, float] = {}
    nonfinite: list[str] = []
    for name, value in metrics.items():
        number = float(value)
        if math.isfinite(number):
            values[name] = number
        else:
            nonfinite.append(name)
    return FiniteMetrics(values=values, nonfinite=tuple(nonfinite))


class NameTable:
    """Cleans names for as long as a run's process lives; one name always becomes the same other, no two become one."""

    def __init__(self) -> None:
        self._clean: dict[str, str] = {}
        self._taken: dict[str, str] = {}

    def rename(self, values: Mapping[str, float]) -> dict[str, float]:
        """`values` under valid names. Names that are valid already go first, so that they are the ones that stay."""
        for name in sorted(values, key=lambda name: (not valid_name(name), name)):
            self.clean(name)
        return {self._clean[name]: value for name, value in values.items()}

    def clean(self, name: str) -> str:
        """The valid name that stands for `name`: itself if it is valid and free; a hash of it is added if need be."""
        if name not in self._clean:
            candidate = name if valid_name(name) else _cleaned(name)
            if self._taken.get(candidate, name) != name:
                suffix = "_" + hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
                candidate = candidate[: MAX_NAME_LENGTH - len(suffix)] + suffix
            self._clean[name] = candidate
            self._taken[candidate] = name
        return self._clean[name]


def _cleaned(name: str) -> str:
    replaced = _INVALID_CHARACTER.sub(lambda match: _READABLE.get(match.group(), "_"), name)
    parts = [part for part in replaced.split("/") if part not in {"", ".", ".."}]
    joined = re.sub(r"^\.\.", "_", "/".join(parts)) or "unnamed"
    return joined[:MAX_NAME_LENGTH].rstrip("/")
