"""TextWorld (Côté et al. 2018, arXiv 1806.11532): text adventures that are made from a seed, with no download.

Each problem is a seed; its game is made, compiled and played where the environment runs, which takes about a second.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from agentfly_lib.configs.base import Config
from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.text_actions import AdmissibleActions, AdmissibleMode, one_line, refuse_length
from agentfly_lib.errors import ConfigError

__all__ = ["KIND", "CoinCollector", "CookingGame", "GeneratedGame", "SimpleGame", "TextWorld", "TextWorldSettings"]

PROMPT = """\
You play a text adventure; its first message says what is to be done. Usual actions are: look; inventory; go north, go \
south, go east, go west; examine THING; open THING; close THING; unlock THING with KEY; take THING; take THING from \
PLACE; put THING on PLACE; insert THING into PLACE; drop THING; eat THING."""

EVAL_SEEDS = 1_000_000
"""The held-out games have the seeds from here on."""
FORBIDDEN = (
    "quit",
    "q",
    "restart",
    "save",
    "restore",
    "undo",
    "script",
    "noscript",
    "unscript",
    "transcript",
    "verify",
)
"""Words to the interpreter, not to the game: they write files or begin anew. So do those with `tw-`, which cheat."""
WORD_LETTERS = 9
"""A Z-machine compares no more letters of a word."""
LOGO = re.compile(r"^[ _|\\/$>]*$", re.MULTILINE)
STATUS = re.compile(r"(?:^|\n)>\s.*\Z", re.DOTALL)
"""The prompt, and the status line that is drawn behind it."""


class GeneratedGame(Config):
    """Rooms, things and a quest drawn at random, as `tw-make custom` does."""

    type: Literal["generated"] = "generated"
    rooms: int = Field(default=3, ge=1, le=100)
    objects: int = Field(default=6, ge=1, le=200)
    quest_length: int = Field(default=4, ge=1, le=20)
    """Actions on the shortest way to the goal."""


class SimpleGame(Config):
    """`tw-make tw-simple`: find food in a house of six rooms and put it on the stove."""

    type: Literal["simple"] = "simple"
    rewards: Literal["dense", "balanced", "sparse"] = "dense"
    goal: Literal["detailed", "brief", "none"] = "detailed"
    """How the objective is described."""


class CoinCollector(Config):
    """`tw-make tw-coin_collector`: find the coin in a maze."""

    type: Literal["coin_collector"] = "coin_collector"
    level: int = Field(default=5, ge=1, le=300)


class CookingGame(Config):
    """`tw-make tw-cooking`: gather what a recipe names, prepare it and eat the meal."""

    type: Literal["cooking"] = "cooking"
    recipe: int = Field(default=1, ge=1, le=5)
    """Ingredients."""
    take: int = Field(default=1, ge=0, le=5)
    """Ingredients that have to be found."""
    go: Literal[1, 6, 9, 12] = 1
    """Rooms."""
    open: bool = False
    cook: bool = False
    cut: bool = False
    drop: bool = False
    """The inventory is limited."""

    @model_validator(mode="after")
    def _takes_what_there_is(self) -> CookingGame:
        if self.take > self.recipe:
            raise ValueError(f"take = {self.take} is more than the recipe's {self.recipe} ingredients")
        return self


Game = Annotated[GeneratedGame | SimpleGame | CoinCollector | CookingGame, Field(discriminator="type")]


class TextWorldSettings(EnvironmentSettings):
    """Which games, and how they are played."""

    game: Game = GeneratedGame()
    train_games: PositiveInt = 1000
    eval_games: PositiveInt = 100
    max_steps: PositiveInt = 50
    """The episode ends after so many actions."""
    admissible: AdmissibleMode = "on_demand"
    """The possible actions: told by a tool of their own, after every observation, or never."""


class TextWorld:
    """One game. A problem names its `seed`; rewards add up to the game's score as a part of its maximum."""

    def __init__(self, **settings: Any) -> None:
        self._settings = TextWorldSettings(**settings)
        self._admissible = AdmissibleActions(self._settings.admissible)
        self._folder = tempfile.TemporaryDirectory(prefix="agentfly-textworld-")
        self._game: Any = None
        self._state: Any = None
        self._steps, self._total = 0, 0.0

    def reset(self, problem: Mapping[str, Any]) -> str:
        """Makes the problem's game and begins it."""
        self._end()
        self._game = _player(make_game(self._settings.game, int(problem["seed"]), Path(self._folder.name)))
        self._state, self._steps, self._total = self._game.reset(), 0, 0.0
        return self._admissible.below(clean(self._state.feedback), self._possible)

    def step(self, action: str) -> StepResult:
        """Does one action; `info` has the game's `score`, and whether it was `won` or `lost`."""
        action = one_line(action).encode("ascii", "replace").decode()  # a Z-machine knows no other letters
        if refused := refuse_length(action):
            return refused
        if self._state is None:
            raise RuntimeError("TextWorld has no game to act in")
        if listed := self._admissible.answer(action, self._possible):
            return listed
        if word := forbidden_word(action):
            return StepResult.refused(f"{word!r} is no word of this game.")
        self._state, _, ended = self._game.step(action)
        self._steps += 1
        observation, won, lost = clean(self._state.feedback), bool(self._state.won), bool(self._state.lost)
        done = bool(ended) or won or lost or self._steps >= self._settings.max_steps
        total = float(self._state.score) / float(self._state.max_score)
        reward, self._total = total - self._total, total
        return StepResult(
            observation=observation if done else self._admissible.below(observation, self._possible),
            reward=reward,
            done=done,
            info={"score": int(self._state.score), "won": won, "lost": lost, "steps": self._steps},
        )

    def walkthrough(self) -> list[str]:
        """The actions that win the running game."""
        return list(self._state["extra.walkthrough"])

    def close(self) -> None:
        """Forgets the game and its files."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        if self._game is not None:
            self._game.close()
        self._game = self._state = None

    def _possible(self) -> Sequence[str]:
        return self._state.admissible_commands


def make_game(game: Game, seed: int, folder: Path) -> Path:
    """Makes and compiles a game; the same for the same settings and seed. Overwrites the one that is in the folder."""
    import textworld
    from textworld.challenges import CHALLENGES
    from textworld.generator import compile_game, make_game

    options = textworld.GameOptions()
    options.seeds, options.path, options.force_recompile = seed, str(folder / "game.z8"), True
    if isinstance(game, GeneratedGame):
        options.nb_rooms, options.nb_objects, options.quest_length = game.rooms, game.objects, game.quest_length
        made = make_game(options)
    else:
        _, make, _ = CHALLENGES[f"tw-{game.type}"]
        made = make(game.model_dump(exclude={"type"}) | EXTRA_SETTINGS.get(game.type, {}), options)
    return Path(compile_game(made, options))


EXTRA_SETTINGS: Mapping[str, dict[str, Any]] = {
    "simple": {"test": False},
    "cooking": {"recipe_seed": 0, "split": None},
}
"""What the makers of games want to be told besides."""


def forbidden_word(action: str) -> str | None:
    """The first word of an action, or of several in one line, that is meant for the interpreter."""
    for word in re.findall(r"[^\s.,;\"]+", action.lower()):
        if word[:WORD_LETTERS] in {forbidden[:WORD_LETTERS] for forbidden in FORBIDDEN} or word.startswith("tw-"):
            return word
    return None


def clean(feedback: str) -> str:
    """What a game says, without the picture of the title and the status line."""
    text = LOGO.sub("", STATUS.sub("", feedback))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _player(path: Path) -> Any:
    import textworld

    wanted = textworld.EnvInfos(
        won=True, lost=True, score=True, max_score=True, admissible_commands=True, extras=["walkthrough"]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the game is none of the classics it knows the secrets of
        return textworld.start(str(path), wanted)


def check(_settings: TextWorldSettings) -> None:
    """Raises `ConfigError` if packages are missing."""
    for package in ("textworld", "jericho"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"the environment textworld needs the package {package}: `make envs`, or the extra envs")


def problems(settings: TextWorldSettings, split: Literal["train", "eval"]) -> Iterator[Mapping[str, Any]]:
    """A seed each."""
    first, count = (0, settings.train_games) if split == "train" else (EVAL_SEEDS, settings.eval_games)
    for seed in range(first, first + count):
        yield {"id": f"{settings.game.type}-{seed}", "question": "", "seed": seed}


def actions(settings: TextWorldSettings) -> Sequence[Callable[..., str]]:
    """The agent's tools."""
    return AdmissibleActions(settings.admissible).tools


KIND = EnvironmentKind(
    name="textworld",
    make=TextWorld,
    settings=TextWorldSettings,
    actions=actions,
    problems=problems,
    prompt=PROMPT,
    check=check,
    step_seconds=120.0,
    packages=("textworld", "jericho"),
)
