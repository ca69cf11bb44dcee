"""ALFWorld's player on games in its own format: walkthroughs succeed, a random policy does not.

The games are built from ALFRED's trajectories with the package's domain and grammar; they are not ours to ship.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentfly_lib.envs.alfworld import KIND, TASK_TYPES, Alfworld, AlfworldSettings
from agentfly_lib.envs.text_actions import do, list_actions
from agentfly_lib.errors import ConfigError, DataError

for package in ("alfworld", "textworld", "fast_downward"):
    pytest.importorskip(package, reason=f"{package} is not installed: make envs")
DATA = Path(os.environ.get("AGENTFLY_TEST_DATA", Path(__file__).parents[3] / "shared/data")) / "alfworld"
GAMES = sorted(DATA.glob("*/*/game.tw-pddl"))
needs_games = pytest.mark.skipif(not GAMES, reason=f"there are no ALFWorld games in {DATA}")
FEW = 3
"""Games that are loaded in the quick tests; each costs seconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The games as the official data lie: 12 to train on, 4 in seen rooms, 4 in others."""
    made = tmp_path_factory.mktemp("alfworld")
    for index, game in enumerate(GAMES):
        part = ("train", "train", "valid_seen", "train", "valid_unseen")[index % 5]
        task = made / "json_2.1.1" / part / game.parents[1].name
        task.parent.mkdir(parents=True, exist_ok=True)
        task.symlink_to(game.parents[1])
    return made


@pytest.fixture(scope="module")
def room(folder: Path) -> Iterator[Alfworld]:
    with closing(Alfworld(folder=folder)) as made:
        yield made


def rows(folder: Path, split: Any = "train", **settings: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in KIND.problems(AlfworldSettings(folder=folder, **settings), split)]


def walkthrough(folder: Path, row: dict[str, Any]) -> list[str]:
    return json.loads((folder / "json_2.1.1" / row["game"]).read_text())["walkthrough"]


def solve(room: Alfworld, folder: Path, row: dict[str, Any]) -> None:
    assert "Your task is to: " in room.reset(row)
    results = [room.step(action) for action in walkthrough(folder, row)]
    assert [result.done for result in results] == [False] * (len(results) - 1) + [True], row["id"]
    assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0], row["id"]
    assert results[-1].info == {"won": True, "steps": len(results)}
    assert not any(result.error for result in results)


@needs_games
def test_a_walkthrough_succeeds(room: Alfworld, folder: Path) -> None:
    few = rows(folder)[:FEW]
    assert len(few) == FEW
    for row in few:
        solve(room, folder, row)


@pytest.mark.release
@needs_games
@pytest.mark.slow
def test_the_walkthrough_of_every_game_succeeds(room: Alfworld, folder: Path) -> None:
    every = [*rows(folder), *rows(folder, "eval"), *rows(folder, "eval", eval_split="valid_seen")]
    assert len(every) == len(GAMES)
    for row in every:
        solve(room, folder, row)


@needs_games
def test_a_random_policy_does_not(room: Alfworld, folder: Path) -> None:
    chosen = random.Random(0)
    room.reset(rows(folder)[0])
    for _ in range(20):
        listed = room.step("list actions").observation.splitlines()[1:]
        result = room.step(chosen.choice(listed))
        assert (result.reward, result.done) == (0.0, False)


@needs_games
def test_the_episode_is_the_problems(room: Alfworld, folder: Path) -> None:
    first, second = rows(folder)[:2]
    seen = room.reset(first)
    assert seen.startswith("-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.")
    place = room.step("list actions go to").observation.splitlines()[1]
    assert room.step(place).observation.startswith("You arrive at ")
    assert room.reset(second) != seen
    assert room.reset(first) == seen


@needs_games
def test_another_process_begins_the_same_episode(folder: Path, room: Alfworld) -> None:
    row = rows(folder)[0]
    program = (
        f"from agentfly_lib.envs.alfworld import Alfworld\nprint(repr(Alfworld(folder={str(folder)!r}).reset({row})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == repr(room.reset(row))


@needs_games
def test_whatever_a_model_writes_is_answered(room: Alfworld, folder: Path) -> None:
    room.reset(rows(folder)[0])
    for action in ("", "x" * 1_000_000, "\x00\x07\r\n", "日本語 ☃", "go to nowhere 1"):
        result = room.step(action)
        assert result.error is not None
        assert result.error == result.observation
        assert (result.reward, result.done) == (0.0, False)


@needs_games
def test_actions_may_stand_in_every_observation_or_in_none(folder: Path) -> None:
    row = rows(folder)[0]
    with closing(Alfworld(folder=folder, admissible="observation", max_steps=2)) as room:
        assert "\n\nPossible actions:\ngo to " in room.reset(row)
        assert "\ninventory\nlook" in room.step("look").observation
        assert room.step("look").done
    with closing(Alfworld(folder=folder, admissible="hidden")) as room:
        assert "Possible actions" not in room.reset(row)
        assert room.step("list actions").error == "Nothing happens."
    hidden = AlfworldSettings(folder=folder, admissible="hidden")
    assert KIND.actions(hidden) == (do,)
    assert KIND.actions(AlfworldSettings(folder=folder)) == (do, list_actions)


@needs_games
def test_importing_the_package_leaves_the_home_folder_alone(folder: Path, tmp_path: Path) -> None:
    program = (
        "import os\nfrom agentfly_lib.envs.alfworld import Alfworld\n"
        f"room = Alfworld(folder={str(folder)!r})\nroom.reset({rows(folder)[0]})\n"
        "assert 'ALFWORLD_DATA' not in os.environ"
    )
    home = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"} | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=280, env=home)
    assert list(tmp_path.iterdir()) == []


def make_split(folder: Path, part: str, name: str, *, solvable: bool = True, task_type: str = TASK_TYPES[0]) -> Path:
    """A game's files with what the reader of problems looks at."""
    trial = folder / part / name / "trial_1"
    trial.mkdir(parents=True)
    (trial / "traj_data.json").write_text(json.dumps({"task_type": task_type}))
    (trial / "game.tw-pddl").write_text(json.dumps({"solvable": solvable}))
    return trial


def test_problems_are_the_games_that_can_be_played(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_split(tmp_path, "train", name)
    make_split(tmp_path, "train", "other", task_type=TASK_TYPES[1])
    make_split(tmp_path, "train", "unsolvable", solvable=False)
    make_split(tmp_path, "train", "pick_and_place_with_movable_recep-Mug")
    make_split(tmp_path, "train", "pick_and_place-AppleSliced")
    (make_split(tmp_path, "train", "gameless") / "game.tw-pddl").unlink()
    make_split(tmp_path, "valid_seen", "c")
    make_split(tmp_path, "valid_unseen", "d")
    assert sorted(row["id"] for row in rows(tmp_path, task_types=(TASK_TYPES[0],))) == ["a-trial_1", "b-trial_1"]
    assert sorted(row["id"] for row in rows(tmp_path)) == ["a-trial_1", "b-trial_1", "other-trial_1"]
    assert [row["game"] for row in rows(tmp_path, "eval")] == ["valid_unseen/d/trial_1/game.tw-pddl"]
    seen = rows(tmp_path, "eval", eval_split="valid_seen")
    assert [row["game"] for row in seen] == ["valid_seen/c/trial_1/game.tw-pddl"]


def test_the_first_games_are_of_all_task_types(tmp_path: Path) -> None:
    count = {task_type: 3 + number for number, task_type in enumerate(TASK_TYPES)}
    for task_type in TASK_TYPES:
        for number in range(count[task_type]):
            make_split(tmp_path, "train", f"{task_type}-{number}", task_type=task_type)
    games = [row["id"].removesuffix("-trial_1") for row in rows(tmp_path)]
    types = [game.rpartition("-")[0] for game in games]
    assert types[: 3 * len(TASK_TYPES)] == 3 * list(TASK_TYPES)
    assert {task_type: types.count(task_type) for task_type in TASK_TYPES} == count
    assert len(set(games)) == len(games)
    assert games != sorted(games, key=lambda game: (int(game.rpartition("-")[2]), TASK_TYPES.index(game[:-2])))
    assert games == [row["id"].removesuffix("-trial_1") for row in rows(tmp_path)]


def test_of_games_without_splits_every_fifth_is_held_out(tmp_path: Path) -> None:
    for name in "abcdef":
        make_split(tmp_path, ".", name)
    assert sorted(row["game"][0] for row in rows(tmp_path)) == ["a", "b", "c", "d", "f"]
    assert [row["game"] for row in rows(tmp_path, "eval")] == ["e/trial_1/game.tw-pddl"]


def test_bad_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has no folder train, valid_seen or valid_unseen, nor games.*alfworld-download"
    ):
        KIND.check(AlfworldSettings(folder=tmp_path))
    trial = make_split(tmp_path, "train", "a")
    KIND.check(AlfworldSettings(folder=tmp_path))
    with pytest.raises(ConfigError, match=r"there is no .*valid_unseen"):
        rows(tmp_path, "eval")
    (trial / "game.tw-pddl").write_text("{")
    with pytest.raises(DataError, match=r"a/trial_1/game\.tw-pddl cannot be read"):
        rows(tmp_path)
    room = Alfworld(folder=tmp_path)
    for outside in ("../secret.json", "/etc/passwd"):
        with pytest.raises(DataError, match="is not in"):
            room.reset({"game": outside})
    with pytest.raises(RuntimeError, match="no game"):
        room.step("look")
    room.close()
    room.close()
