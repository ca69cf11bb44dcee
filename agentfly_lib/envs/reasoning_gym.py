"""Problems of reasoning-gym, over a hundred kinds of puzzles that are generated and whose answers are verified.

An episode is one answer, which the package's own verifier scores. It runs in a process of its own: some verifiers
compute with what the model has written, and may not come back.
"""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt

from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.errors import ConfigError
from agentfly_lib.named import near_or_all

__all__ = ["KIND", "ReasoningGym", "ReasoningGymSettings"]

_SIZE = 10_000
"""Of the generated datasets, which make a problem when it is asked for."""
_MAX_CHARS = 10_000
_REPEATS = 200
"""Problems in a row that are known already before we conclude that there are no others."""


class ReasoningGymSettings(EnvironmentSettings):
    """Which puzzles."""

    tasks: tuple[str, ...] = Field(default=("chain_sum",), min_length=1)
    """Names of the package's datasets; their problems take turns."""
    config: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By a task's name: its parameters, which say how hard it is."""
    seed: int = Field(default=0, ge=0)
    held_out: PositiveInt = 256
    """So many evaluation problems of each task are kept out of training, should it come upon the same ones."""


class ReasoningGym:
    """One problem at a time. `columns`: `task`, `seed` and `index`, by which the package makes it again."""

    def __init__(self, **settings: Any) -> None:
        self._settings = ReasoningGymSettings(**settings)
        self._datasets: dict[tuple[str, int], Any] = {}
        self._entry: Any = None
        self._verifier: Any = None

    def reset(self, problem: Mapping[str, Any]) -> str:
        key = (problem["task"], int(problem["seed"]))
        if key not in self._datasets:
            self._datasets[key] = _dataset(self._settings, *key)
        self._verifier = self._datasets[key]
        self._entry = self._verifier[int(problem["index"])]
        return ""

    def step(self, action: str) -> StepResult:
        if self._entry is None:
            return StepResult(observation="The answer is given.", done=True, error="there is no problem to answer")
        if len(action) > _MAX_CHARS:
            long = f"The answer is {len(action)} characters long, more than {_MAX_CHARS}; write a shorter one."
            return StepResult.refused(long)
        entry, self._entry = self._entry, None
        try:
            reward = float(self._verifier.score_answer(action, entry))
        except Exception as error:  # noqa: BLE001  some verifiers raise for what they cannot read
            return StepResult(
                observation="Answered.", done=True, info={"unreadable": f"{type(error).__name__}: {error}"}
            )
        return StepResult(observation="Answered.", reward=reward, done=True, info={"answer": str(entry["answer"])})

    def close(self) -> None:
        self._datasets.clear()


def answer(text: str) -> str:
    """Give the final answer. There is one try.

    Args:
        text: The answer alone, in the form that the problem asks for.
    """
    return text


def _dataset(settings: ReasoningGymSettings, task: str, seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of a package below it, when it is compiled
        import reasoning_gym
    return reasoning_gym.create_dataset(task, **{"size": _SIZE, "seed": seed, **settings.config.get(task, {})})


def _problems(settings: ReasoningGymSettings, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """The tasks in turn; without end, but for tasks that have only so many problems."""
    streams = [_of_task(settings, task, split) for task in settings.tasks]
    while streams:
        for stream in list(streams):
            row = next(stream, None)
            if row is None:
                streams.remove(stream)
            else:
                yield row


def _of_task(settings: ReasoningGymSettings, task: str, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """Distinct problems; those of training are none of the held-out ones."""
    seen: set[str] = set()
    if split == "train":
        held_out = itertools.islice(_of_task(settings, task, "eval"), settings.held_out)
        seen = {row["question"] for row in held_out}
    # The package makes problem n of a seed from their sum, so seeds must be as far apart as problems are many.
    seed = _SIZE * (2 * settings.seed + (split == "eval"))
    dataset, repeats = _dataset(settings, task, seed), 0
    for index in range(len(dataset)):
        question = dataset[index]["question"]
        if question not in seen:
            seen.add(question)
            repeats = 0
            yield {"question": question, "task": task, "seed": seed, "index": index}
        elif (repeats := repeats + 1) > _REPEATS:
            return


def _check(settings: ReasoningGymSettings) -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigError("environment 'reasoning_gym' needs its package: `pip install reasoning-gym` (or `make envs`)")
    from reasoning_gym.factory import DATASETS

    for task in (*settings.tasks, *settings.config):
        if task not in DATASETS:
            hint = near_or_all(task, sorted(DATASETS))
            raise ConfigError(f"environment 'reasoning_gym': there is no task {task!r}; {hint}")
    for task in settings.tasks:
        try:
            _dataset(settings, task, 0)
        except (TypeError, AssertionError, ValueError) as error:
            raise ConfigError(f"environment 'reasoning_gym': config.{task} does not fit: {error}") from error


KIND = EnvironmentKind(
    name="reasoning_gym",
    make=ReasoningGym,
    settings=ReasoningGymSettings,
    actions=(answer,),
    problems=_problems,
    endless=True,
    prompt="Solve the problem. Think first, then call the tool `answer` with the final answer.",
    first_observation=False,
    check=_check,
    packages=("reasoning-gym",),
)
