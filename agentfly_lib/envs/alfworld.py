"""ALFWorld (Shridhar et al. 2021, arXiv 2010.03768): household tasks as text, the games of the package `alfworld`.

The games are files that are downloaded, or made from ALFRED's trajectories, with the package's own commands:

    <folder>/train|valid_seen|valid_unseen/<task>/<trial>/game.tw-pddl, traj_data.json

`<folder>/json_2.1.1/...`, which the download makes, is found too; of a folder of `<task>/<trial>` without splits, every
fifth game is held out. TextWorld plays the games over Fast Downward.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import PositiveInt

from agentfly_lib.environment import variables
from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.text_actions import AdmissibleActions, AdmissibleMode, one_line, refuse_length
from agentfly_lib.errors import ConfigError, DataError

__all__ = ["KIND", "TASK_TYPES", "Alfworld", "AlfworldSettings"]

PROMPT = """\
You are in a room of a house and have a task to do there. Actions are, for places PLACE and things THING with their \
numbers, such as "drawer 2" and "mug 1": look; inventory; go to PLACE; open PLACE; close PLACE; take THING from PLACE; \
move THING to PLACE; examine THING or PLACE; use THING; heat THING with PLACE; clean THING with PLACE; cool THING with \
PLACE; slice THING with THING. What is inside a closed place is seen when it is opened, and you carry one thing at a \
time. "Nothing happens" means that the action cannot be done as it was worded, or not now."""

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TASK_TYPES: tuple[TaskType, ...] = TaskType.__args__
GAME, TRAJECTORY = "game.tw-pddl", "traj_data.json"
UNDONE = "Nothing happens."


class AlfworldSettings(EnvironmentSettings):
    """Which games, and how they are played."""

    folder: Path
    """Holds `train`, `valid_seen` and `valid_unseen`, or the `json_2.1.1` that does, or games alone. `~` is the home
    folder."""
    eval_split: Literal["valid_seen", "valid_unseen"] = "valid_unseen"
    """Which split the held-out problems are: rooms of the training games, or other rooms."""
    task_types: tuple[TaskType, ...] = TASK_TYPES
    max_steps: PositiveInt = 50
    """The episode ends after so many actions; 50 is the package's default."""
    admissible: AdmissibleMode = "on_demand"
    """The possible actions: told by a tool of their own, after every observation, or never."""


class Alfworld:
    """One room. A problem names its `game`, a path below the folder; the reward is 1 when the task is done."""

    def __init__(self, **settings: Any) -> None:
        self._settings = AlfworldSettings(**settings)
        self._admissible = AdmissibleActions(self._settings.admissible)
        self._folder = games_folder(self._settings.folder)
        self._game: Any = None
        self._state: Any = None
        self._steps = 0

    def reset(self, problem: Mapping[str, Any]) -> str:
        """What is seen around, and the task."""
        name = PurePosixPath(str(problem["game"]))
        if name.is_absolute() or ".." in name.parts:
            raise DataError(f"alfworld: the game {str(name)!r} is not in {self._folder}")
        if self._game is None:
            self._game = _interpreter(self._folder)
        self._game.load(str(self._folder / name))
        self._state, self._steps = self._game.reset(), 0
        return self._admissible.below(str(self._state.feedback).strip(), self._possible)

    def step(self, action: str) -> StepResult:
        """Does one action; `info` says whether the task was `won`."""
        action = one_line(action)
        if refused := refuse_length(action):
            return refused
        if self._state is None:
            raise RuntimeError("ALFWorld has no game to act in")
        if listed := self._admissible.answer(action, self._possible):
            return listed
        self._state, _, _ = self._game.step(action)
        self._steps += 1
        won = bool(self._state.won)
        observation = str(self._state.feedback).strip()
        return StepResult(
            observation=observation if won else self._admissible.below(observation, self._possible),
            reward=float(won),
            done=won or self._steps >= self._settings.max_steps,
            info={"won": won, "steps": self._steps},
            error=observation if observation == UNDONE else None,
        )

    def close(self) -> None:
        """Forgets the game."""
        if self._game is not None:
            self._game.close()
        self._game = self._state = None

    def _possible(self) -> Sequence[str]:
        return self._state.admissible_commands


def games_folder(folder: Path) -> Path:
    """Where the splits are, or the games if there are no splits. Raises `ConfigError` that says what belongs there."""
    folder = folder.expanduser()
    for found in (folder, folder / "json_2.1.1"):
        if _has_splits(found):
            return found
    if next(folder.glob(f"*/*/{GAME}"), None) is not None:
        return folder
    raise ConfigError(
        f"alfworld: {folder} has no folder train, valid_seen or valid_unseen, nor games. The official ones: "
        f"`ALFWORLD_DATA={folder} alfworld-download`, where the network allows it"
    )


def _has_splits(folder: Path) -> bool:
    return any((folder / split).is_dir() for split in ("train", "valid_seen", "valid_unseen"))


def check(settings: AlfworldSettings) -> None:
    """Raises `ConfigError` if packages or games are missing."""
    for package in ("alfworld", "textworld", "fast_downward"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"the environment alfworld needs the package {package}: `make envs`, or the extra envs")
    games_folder(settings.folder)


def problems(settings: AlfworldSettings, split: Literal["train", "eval"]) -> Iterator[Mapping[str, Any]]:
    """Every game of the split that can be solved. Task types take turns, so that the first games are of all of them,
    and in various rooms. Raises `DataError` for a broken file.

    As in the package, tasks with movable receptacles and sliced things are left out.
    """
    folder = games_folder(settings.folder)
    if _has_splits(folder):
        part = folder / ("train" if split == "train" else settings.eval_split)
        if not part.is_dir():
            raise ConfigError(f"alfworld: there is no {part}")
        trials = sorted(path.parent for path in part.glob(f"*/*/{TRAJECTORY}"))
    else:
        part = folder
        every = sorted(path.parent for path in part.glob(f"*/*/{TRAJECTORY}"))
        held_out = set(every[4::5])
        trials = [trial for trial in every if (trial in held_out) == (split == "eval")]
    of_type: dict[str, list[Path]] = {task_type: [] for task_type in settings.task_types}
    for trial in trials:
        name = trial.relative_to(part).as_posix()
        if "movable" not in name and "Sliced" not in name and (trial / GAME).is_file():
            of_type.get(str(_read(trial / TRAJECTORY).get("task_type")), []).append(trial)
    for task_type, found in of_type.items():
        random.Random(f"alfworld/{split}/{task_type}").shuffle(found)
    for trial in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*of_type.values()))):
        if _read(trial / GAME).get("solvable"):
            name = trial.relative_to(part).as_posix()
            yield {"id": name.replace("/", "-"), "question": "", "game": (trial / GAME).relative_to(folder).as_posix()}


def actions(settings: AlfworldSettings) -> Sequence[Callable[..., str]]:
    """The agent's tools."""
    return AdmissibleActions(settings.admissible).tools


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"alfworld: {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"alfworld: {path} is not a JSON object")
    return found


def _interpreter(folder: Path) -> Any:
    """TextWorld's player of these games. The names that they use become the ones that the papers show."""
    # The package makes this folder when it is imported, in the user's home unless it is told where.
    with variables({"ALFWORLD_DATA": str(folder)}):
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv
    return AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))


KIND = EnvironmentKind(
    name="alfworld",
    make=Alfworld,
    settings=AlfworldSettings,
    actions=actions,
    problems=problems,
    prompt=PROMPT,
    check=check,
    step_seconds=60.0,
    packages=("alfworld", "textworld", "fast-downward-textworld"),
)
