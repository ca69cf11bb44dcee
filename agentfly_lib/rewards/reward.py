"""`@reward` makes a function a reward: what it asks for by name, it is given.

    @reward(name="exact")
    def exact(prediction: str, answer: str) -> float:
        return float(answer in prediction)

Arguments come from the trajectory (`final_response` or `prediction`, `trajectory`, `messages`, `env_reward`,
`problem`, `context`) or are columns of the dataset. The result is a number, a bool, a dict with `reward` and named
parts, or None for "cannot be scored", which is not 0.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, overload

from agentfly_lib.bounded import is_async
from agentfly_lib.errors import ConfigError, RewardError
from agentfly_lib.types import RESERVED_COLUMNS, Problem, Trajectory

__all__ = ["Reward", "RewardContext", "Verdict", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """Which trajectory is scored."""

    trajectory_id: str
    group_id: str
    problem_id: str
    env_reward: float | None
    """None if no environment gave one, in particular for a chain that never acted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reward function's result, checked."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reward:
    """A reward function with its limits. Calling the reward calls the function."""

    provided: ClassVar[frozenset[str]] = RESERVED_COLUMNS - {"reward", "trajectories", "final_responses"}
    """Arguments that every trajectory can give; all others are columns."""

    name: str
    function: Callable[..., Any]
    timeout: float | None = None
    """Seconds for one call; the recipe's limit if unset."""
    max_concurrency: int | None = None
    """Calls in flight at the same time, below the recipe's limit: for servers that bear no more."""
    retries: int | None = None
    """Tries after the first when it raises; the recipe's number if unset."""
    backoff_seconds: float = 0.0
    """Wait before the second try, doubled with each further one: for servers that need a pause."""
    inline: bool = False
    """Runs on the event loop itself. Only for pure Python that is bounded to well under a millisecond: nothing can
    interrupt it. It may return an awaitable for a rare case that takes longer."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a reward needs a name")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"reward {self.name}: timeout={self.timeout} must be more than 0 seconds")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"reward {self.name}: max_concurrency={self.max_concurrency} must be at least 1")
        if (self.retries or 0) < 0 or self.backoff_seconds < 0:
            raise ConfigError(f"reward {self.name}: retries and backoff_seconds cannot be negative")
        if self.inline and self.is_async:
            raise ConfigError(
                f"reward {self.name}: inline=True is only for plain functions, and this one is async already"
            )
        for parameter in self._parameters:
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise ConfigError(f"reward {self.name}: the parameter {parameter.name} cannot be given by name")
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.function, attribute):
                object.__setattr__(self, attribute, getattr(self.function, attribute))
        object.__setattr__(self, "__wrapped__", self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of all arguments, in order."""
        return tuple(p.name for p in self._parameters if p.kind is not p.VAR_KEYWORD)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Those without a default."""
        empty = inspect.Parameter.empty
        return tuple(p.name for p in self._parameters if p.default is empty and p.name in self.arguments)

    @cached_property
    def takes_all_columns(self) -> bool:
        """The function has `**kwargs`."""
        return any(p.kind is p.VAR_KEYWORD for p in self._parameters)

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        return tuple(inspect.signature(self.function).parameters.values())

    def check_columns(self, columns: Iterable[str]) -> None:
        """Raises `ConfigError` if the reward asks for something that neither rollout nor dataset has."""
        there = sorted(columns)
        for name in self.required:
            if name in self.provided or (name in there and name not in RESERVED_COLUMNS):
                continue
            near = difflib.get_close_matches(name, [*there, *self.provided], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ConfigError(
                f"reward {self.name!r} asks for the column {name!r}{hint}, which the dataset does not have. "
                f"Its columns: {', '.join(there) or 'none'}; "
                f"always there: {', '.join(sorted(self.provided))}"
            )

    def bind(self, trajectory: Trajectory, problem: Problem) -> dict[str, Any]:
        """Keyword arguments for one trajectory. Raises `RewardError` if its problem lacks a column."""
        return self._keywords(problem, lambda name: _provide(name, trajectory, problem))

    def _keywords(self, problem: Problem, provide: Callable[[str], Any]) -> dict[str, Any]:
        keywords: dict[str, Any] = {}
        for name in self.arguments:
            if name in self.provided:
                keywords[name] = provide(name)
            elif name in problem.columns:
                keywords[name] = problem.columns[name]
            elif name in self.required:
                raise RewardError(f"reward {self.name!r}: problem {problem.id} has no column {name!r}")
        if self.takes_all_columns:
            keywords = {**problem.columns, **keywords}
        return keywords

    def read(self, value: Any) -> Verdict | None:
        """Checks what the function returned. Raises `RewardError`, with the reward's name, for anything else."""
        if value is None:
            return None
        if not isinstance(value, Mapping):
            return Verdict(reward=self._number(value, "its result"))
        if "reward" not in value:
            keys = ", ".join(map(str, value)) or "none"
            raise RewardError(f"reward {self.name!r} returned a dict without the key 'reward' (its keys: {keys})")
        if value["reward"] is None:
            return None
        parts = {str(key): part for key, part in value.items() if key != "reward" and _is_number(part)}
        return Verdict(
            reward=self._number(value["reward"], "its 'reward'"),
            parts={key: self._number(part, f"its part {key!r}") for key, part in parts.items()},
        )

    def _number(self, value: Any, what: str) -> float:
        if not _is_number(value):
            raise RewardError(
                f"reward {self.name!r}: {what} is a {type(value).__name__}, expected a number, a bool, "
                "a dict with 'reward', or None"
            )
        try:
            number = float(value)
        except Exception as error:  # foreign number types raise what they like
            raise RewardError(
                f"reward {self.name!r}: {what} is a {type(value).__name__} that cannot be made a float "
                f"({type(error).__name__})"
            ) from error
        if not math.isfinite(number):
            raise RewardError(f"reward {self.name!r}: {what} is {number}, and a reward must be finite")
        return number


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Real):
        return True
    # Arrays and tensors of no dimension are numbers too, whatever library they come from.
    return getattr(value, "shape", None) == () and hasattr(value, "__float__")


def _provide(name: str, trajectory: Trajectory, problem: Problem) -> Any:
    match name:
        case "final_response" | "prediction":
            return trajectory.final_response
        case "trajectory":
            return trajectory
        case "messages":
            return [*problem.messages, *trajectory.messages]
        case "env_reward":
            return trajectory.env_reward
        case "problem":
            return problem
        case _:
            return RewardContext(
                trajectory_id=trajectory.id,
                group_id=trajectory.group_id,
                problem_id=trajectory.problem_id,
                env_reward=trajectory.env_reward,
            )


@overload
def reward(function: Callable[..., Any], /) -> Reward: ...
@overload
def reward(
    *,
    name: str | None = None,
    timeout: float | None = None,
    inline: bool = False,
    max_concurrency: int | None = None,
    retries: int | None = None,
    backoff_seconds: float = 0.0,
) -> Callable[[Callable[..., Any]], Reward]: ...
def reward(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    inline: bool = False,
    max_concurrency: int | None = None,
    retries: int | None = None,
    backoff_seconds: float = 0.0,
) -> Reward | Callable[[Callable[..., Any]], Reward]:
    """Makes a reward of a function, synchronous or not; bare, or with settings (see the fields of `Reward`).

    A plain function runs in a worker process, which is killed at the time limit whatever it does; it must stand in an
    importable module for that (a notebook's function runs in a thread, which is only abandoned). An async function runs
    on the event loop.
    """

    def decorate(function: Callable[..., Any]) -> Reward:
        return Reward(
            name=name or getattr(function, "__name__", type(function).__name__),
            function=function,
            timeout=timeout,
            inline=inline,
            max_concurrency=max_concurrency,
            retries=retries,
            backoff_seconds=backoff_seconds,
        )

    return decorate(function) if function is not None else decorate
