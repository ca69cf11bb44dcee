"""Several rewards as one: a weighted sum whose parts keep their names.

    quality = CompositeReward(
        name="quality",
        parts=(Part(reward=math_equal), Part(reward=tool_use(), weight=0.1, optional=True)),
    )

A chain's reward is the sum of weight x value; the parts are recorded as they are, without their weights. Where a part
cannot be scored, nothing can, unless the part is optional: it then adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards.reward import Reward, Verdict

__all__ = ["CompositeReward", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One reward of several."""

    reward: Reward
    weight: float = 1.0
    optional: bool = False
    """If it cannot be scored, the others are scored without it."""
    name: str = ""
    """In the recorded parts; the reward's own name if empty."""

    @property
    def label(self) -> str:
        return self.name or self.reward.name


def _many(**_: Any) -> None:
    raise TypeError("a composite reward is scored part by part, with score_groups; it cannot be called")


@dataclass(frozen=True, kw_only=True, eq=False)
class CompositeReward(Reward):
    """A weighted sum of rewards of any kind, composites included. Each part runs where and as long as it would alone.

    Raises `ConfigError` for no parts, two of one name, or a weight that is not finite.
    """

    parts: tuple[Part, ...]
    function: Callable[..., Any] = field(default_factory=lambda: _many, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(self, "__name__", self.name)
        if not self.parts:
            raise ConfigError(f"reward {self.name}: a composite needs at least one part")
        for part in self.parts:
            if not isinstance(part.reward, Reward):
                raise ConfigError(f"reward {self.name}: a part is a {type(part.reward).__name__}, not a reward")
        labels = [part.label for part in self.parts]
        for part in self.parts:
            if not math.isfinite(part.weight):
                raise ConfigError(f"reward {self.name}: the weight {part.weight} of {part.label} is not finite")
            if labels.count(part.label) > 1:
                raise ConfigError(f"reward {self.name}: two parts are called {part.label!r}; name one of them")
        if all(part.optional for part in self.parts):
            raise ConfigError(f"reward {self.name}: every part is optional; at least one must decide")

    def check_columns(self, columns: Iterable[str]) -> None:
        """Raises `ConfigError` if a part asks for something that neither rollout nor dataset has."""
        there = list(columns)
        for part in self.parts:
            part.reward.check_columns(there)

    def combine(self, verdicts: Sequence[Verdict | None]) -> Verdict | None:
        """The whole verdict of one chain from its parts' verdicts, in order."""
        total, parts = 0.0, dict[str, float]()
        for part, verdict in zip(self.parts, verdicts, strict=True):
            if verdict is None:
                if part.optional:
                    continue
                return None
            total += part.weight * verdict.reward
            parts[part.label] = verdict.reward
            parts |= {f"{part.label}.{key}": value for key, value in verdict.parts.items()}
        return Verdict(reward=self._number(total, "its sum"), parts=parts)
