"""`@group_reward` makes a reward that sees all chains of a problem at once, and says of each what it is worth.

    @group_reward
    def shortest(final_responses: list[str]) -> list[float]:
        least = min(map(len, final_responses))
        return [float(len(text) == least) for text in final_responses]

Arguments by name: `trajectories`, `final_responses` (of the chains that did not fail, in order), `problem`, and the
dataset's columns. The result has one entry for each of them; an entry is whatever a reward may return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

from agentfly_lib.errors import RewardError
from agentfly_lib.rewards.reward import Reward, Verdict
from agentfly_lib.types import Problem, Trajectory

__all__ = ["GroupReward", "group_reward"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupReward(Reward):
    """A reward of a whole group; its limits hold for one group."""

    provided: ClassVar[frozenset[str]] = frozenset({"trajectories", "final_responses", "problem"})

    def bind_group(self, trajectories: Sequence[Trajectory], problem: Problem) -> dict[str, Any]:
        """Keyword arguments for one group. Raises `RewardError` if its problem lacks a column."""
        values: dict[str, Any] = {
            "trajectories": list(trajectories),
            "final_responses": [trajectory.final_response for trajectory in trajectories],
            "problem": problem,
        }
        return self._keywords(problem, values.__getitem__)

    def read_group(self, value: Any, count: int) -> list[Verdict | None]:
        """Checks what the function returned. Raises `RewardError` unless that is one reward for each chain."""
        if value is None:
            return [None] * count
        if isinstance(value, str) or (not isinstance(value, Sequence) and not hasattr(value, "tolist")):
            raise RewardError(
                f"reward {self.name!r} returned a {type(value).__name__}, expected one entry for each of {count} chains"
            )
        entries = value if isinstance(value, Sequence) else value.tolist()
        if len(entries) != count:
            raise RewardError(f"reward {self.name!r} returned {len(entries)} entries for {count} chains")
        return [self.read(entry) for entry in entries]


@overload
def group_reward(function: Callable[..., Any], /) -> GroupReward: ...
@overload
def group_reward(
    *,
    name: str | None = None,
    timeout: float | None = None,
    inline: bool = False,
    max_concurrency: int | None = None,
    retries: int | None = None,
    backoff_seconds: float = 0.0,
) -> Callable[[Callable[..., Any]], GroupReward]: ...
def group_reward(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **limits: Any
) -> GroupReward | Callable[[Callable[..., Any]], GroupReward]:
    """Makes a group's reward of a function, synchronous or not; bare, or with settings (see the fields of `Reward`).

    It runs where a reward made by `@reward` would.
    """

    def decorate(function: Callable[..., Any]) -> GroupReward:
        default_name = getattr(function, "__name__", type(function).__name__)
        return GroupReward(name=name or default_name, function=function, **limits)

    return decorate(function) if function is not None else decorate
