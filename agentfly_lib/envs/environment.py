"""What an environment is: a place where one agent acts for one episode, and what the rest of the program knows of it.

    class Countdown:
        def reset(self, problem): self.left = int(problem["start"]); return f"{self.left} left"
        def step(self, action): self.left -= 1; return StepResult(observation=f"{self.left} left", done=self.left == 0)
        def close(self): ...

    def wait() -> str:
        \"\"\"Let a second pass.\"\"\"
        return "wait"

    COUNTDOWN = EnvironmentKind(name="countdown", make=Countdown, actions=(wait,), problems=..., prompt="...")

An environment is ordinary blocking code and serves one episode at a time; where it runs (a process of its own, or a
thread) and how it is bounded in time is `envs.spec`'s business. Users add kinds by the entry point group
`agentfly.environments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from agentfly_lib.configs.base import Config

__all__ = ["Action", "Environment", "EnvironmentKind", "EnvironmentSettings", "StepResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one action brought."""

    observation: str
    reward: float = 0.0
    """Of this step. The episode's return is their sum, and is the trajectory's `env_reward`."""
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    images: tuple[bytes, ...] = ()
    """Encoded (PNG or JPEG), as they follow the observation."""
    error: str | None = None
    """Set if the action could not be done; the observation tells the model then. The episode goes on."""

    @classmethod
    def refused(cls, why: str, *, done: bool = False) -> StepResult:
        """The action could not be done, and the model is told why."""
        return cls(observation=why, error=why, done=done)


@runtime_checkable
class Environment(Protocol):
    """Blocking code for one episode at a time. What it raises is an environment failure of that trajectory alone."""

    def reset(self, problem: Mapping[str, Any]) -> str:
        """Begins the episode of a problem's columns, whatever came before it, and returns the first observation.

        The same columns give the same episode: what is random is seeded by them.
        """
        ...

    def step(self, action: str) -> StepResult:
        """Does one action, or says why it cannot be done."""
        ...

    def close(self) -> None:
        """Frees what it holds. A second call does nothing."""
        ...


class EnvironmentSettings(Config):
    """Base of the settings of environments: frozen, hashable, no unknown keys."""

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))  # whatever the fields hold, lists too


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A tool that stands for an action whose arguments come with a JSON Schema instead of a Python signature."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of an object."""
    write: Callable[..., str]
    """From the arguments, by name, to the text that `step` takes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EnvironmentKind:
    """An environment, with all that an agent and a dataset need of it. A module holds one as a constant."""

    name: str
    make: Callable[..., Environment]
    """Called with the settings as keywords, where the environment runs. Imports what is heavy."""
    settings: type[EnvironmentSettings] = EnvironmentSettings
    actions: Sequence[Callable[..., str] | Action] | Callable[[Any], Sequence[Callable[..., str] | Action]] = ()
    """The agent's tools: functions with typed arguments and a docstring, which return the text that `step` takes. Or
    a function from the settings to these."""
    problems: Callable[[Any, Literal["train", "eval"]], Iterable[Mapping[str, Any]]]
    """From settings and split to rows: `question`, an optional `id`, and the columns that `reset` reads. Plain JSON
    values; the same every time. Called where the dataset is prepared, lazily, as many rows as are wanted."""
    endless: bool = False
    """There are always more training problems, so a recipe must say how many it wants."""
    prompt: str
    """The agent's system prompt where a recipe gives none."""
    place: Literal["process", "thread"] = "process"
    """`process`: one of its own, killed at a time limit; `thread`: ours, for cheap code of our own that cannot hang."""
    first_observation: bool = True
    """The first observation is put after the question in the prompt, and must be the same when the episode begins."""
    check: Callable[[Any], None] | None = None
    """Raises `UserError`, saying what to install or where the data are, if it cannot run here with these settings."""
    start_seconds: float | Callable[[Any], float] = 60.0
    """Limit for `make`, or a function from the settings to it."""
    step_seconds: float | Callable[[Any], float] = 30.0
    """Limit for `reset`, and for `step`; or a function from the settings to it."""
    memory_mib: int | None = None
    """Address space of its process; None for what maps much more than it uses, as a JVM or a browser does."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions decide what its episodes are: a dataset is prepared anew when one changes."""

    def start_limit(self, settings: EnvironmentSettings) -> float:
        """Seconds that `make` may take with these settings."""
        return self.start_seconds(settings) if callable(self.start_seconds) else self.start_seconds

    def step_limit(self, settings: EnvironmentSettings) -> float:
        """Seconds that `reset` or `step` may take with these settings."""
        return self.step_seconds(settings) if callable(self.step_seconds) else self.step_seconds
