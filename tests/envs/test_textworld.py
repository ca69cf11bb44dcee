"""TextWorld's games are made from seeds, their walkthroughs win, and words to the interpreter do not reach it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentfly_lib.envs.environment import StepResult
from agentfly_lib.envs.registry import read_settings
from agentfly_lib.envs.text_actions import AdmissibleActions, do, list_actions, one_line, tell_actions, wanted_list
from agentfly_lib.envs.textworld import KIND, TextWorld, TextWorldSettings, clean, forbidden_word
from agentfly_lib.errors import ConfigError

for package in ("textworld", "jericho"):
    pytest.importorskip(package, reason=f"{package} is not installed: make envs")
SEED_7 = {"seed": 7}
GAMES = [
    {"type": "generated", "rooms": 4, "objects": 8, "quest_length": 5},
    {"type": "simple", "rewards": "dense"},
    {"type": "coin_collector", "level": 3},
    {"type": "cooking", "recipe": 2, "take": 1, "cook": True, "cut": True},
]


@pytest.fixture(scope="module")
def game() -> Iterator[TextWorld]:
    with closing(TextWorld()) as made:
        yield made


@pytest.mark.parametrize("kind", GAMES, ids=lambda kind: kind["type"])
def test_a_walkthrough_wins(kind: dict[str, Any]) -> None:
    with closing(TextWorld(game=kind)) as game:
        seen = game.reset(SEED_7)
        assert "-= " in seen
        assert "$" not in seen
        results = [game.step(action) for action in game.walkthrough()]
    assert [result.done for result in results] == [False] * (len(results) - 1) + [True]
    assert sum(result.reward for result in results) == pytest.approx(1.0)
    assert results[-1].info["won"]
    assert not results[-1].info["lost"]


def test_rewards_are_parts_of_the_maximum() -> None:
    with closing(TextWorld(game={"type": "simple", "rewards": "dense"})) as game:
        game.reset(SEED_7)
        rewards = [game.step(action).reward for action in game.walkthrough()]
    assert sum(reward > 0 for reward in rewards) == 7
    assert {round(reward, 6) for reward in rewards if reward} == {round(1 / 7, 6)}


def test_a_random_policy_does_not_win(game: TextWorld) -> None:
    chosen, returns = random.Random(0), []
    for seed in range(3):
        game.reset({"seed": seed})
        total = 0.0
        for _ in range(8):
            result = game.step(chosen.choice(game.step("list actions").observation.splitlines()[1:]))
            total += result.reward
            if result.done:
                break
        returns.append(total)
    assert sum(returns) / len(returns) < 1


def test_a_seed_is_a_game(game: TextWorld) -> None:
    first = game.reset(SEED_7)
    moves = game.walkthrough()
    game.step(moves[0])
    assert game.reset({"seed": 8}) != first
    assert game.reset(SEED_7) == first
    assert game.walkthrough() == moves
    with closing(TextWorld()) as other:
        assert other.reset(SEED_7) == first


def test_actions_are_told_when_asked_for(game: TextWorld) -> None:
    seen = game.reset(SEED_7)
    assert "Possible actions" not in seen
    listed = game.step("list actions")
    assert listed.observation.startswith("Possible actions:\n")
    assert {"inventory", "look"} <= set(listed.observation.splitlines())
    assert game.step("look").info["steps"] == 1
    with closing(TextWorld(admissible="observation", max_steps=2)) as other:
        assert other.reset(SEED_7) == f"{seen}\n\n{listed.observation}"
        assert "Possible actions" in other.step("look").observation
        last = other.step("look")
        assert last.done
        assert "Possible actions" not in last.observation
    assert KIND.actions(TextWorldSettings(admissible="hidden")) == (do,)
    assert KIND.actions(TextWorldSettings()) == (do, list_actions)


def test_whatever_a_model_writes_is_answered(game: TextWorld) -> None:
    game.reset(SEED_7)
    for action in ("", "x" * 1_000_000, "x" * 190, "\x00\x07\r\n", "日本語 ☃", "¡olé!", "%s%n", "say '>'"):
        result = game.step(action)
        assert result.observation
        assert (result.reward, result.done) == (0.0, False)
        assert game.step("look").observation.startswith("-= ")


def test_words_to_the_interpreter_do_not_reach_it(
    game: TextWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    game.reset(SEED_7)
    for action in ("save", "look. SAVE", "look,restart", "q", "transcription on", "tw-print state"):
        result = game.step(action)
        assert result.error is not None
        assert result.error.endswith("is no word of this game.")
    assert list(tmp_path.iterdir()) == []
    assert game.step("look").info["steps"] == 1


def test_other_words_do() -> None:
    for action in ("look", "take savings from safe", "unlock quilt box with key", "put restorative on rest"):
        assert forbidden_word(action) is None


def test_nothing_is_left_when_it_is_closed() -> None:
    game = TextWorld()
    folder = Path(game._folder.name)
    game.reset(SEED_7)
    assert (folder / "game.z8").is_file()
    game.close()
    game.close()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="no game"):
        game.step("look")


def test_problems_are_seeds() -> None:
    settings = TextWorldSettings(train_games=3, eval_games=2)
    train, held_out = list(KIND.problems(settings, "train")), list(KIND.problems(settings, "eval"))
    assert [row["seed"] for row in train] == [0, 1, 2]
    assert [row["seed"] for row in held_out] == [1_000_000, 1_000_001]
    assert train[0]["id"] == "generated-0"


def test_settings_that_make_no_game_are_refused() -> None:
    KIND.check(TextWorldSettings())
    with pytest.raises(ConfigError, match="level"):
        read_settings(KIND, {"game": {"type": "coin_collector", "level": 301}}, where="settings")
    with pytest.raises(ConfigError, match="take = 3 is more than the recipe's 1 ingredients"):
        read_settings(KIND, {"game": {"type": "cooking", "take": 3}}, where="settings")


def test_what_a_game_says_is_cleaned() -> None:
    raw = "  ________ \n |  $$ \\  >$$ \n\n\n\nYou are here.\n\n> " + " " * 60 + "-= Room =-0/1"
    assert clean(raw) == "You are here."
    assert clean("\nThe sign says 3 > 2.\n\n>  " + " " * 60 + "-= Room =-0/1") == "The sign says 3 > 2."


def test_text_that_the_worlds_share() -> None:
    assert one_line(" go\x00to\n\tthe  door\u2028") == "go to the door"
    assert wanted_list(list_actions()) == ""
    assert wanted_list(list_actions("Door")) == "door"
    assert wanted_list("list actionsx") is None
    assert wanted_list(do("open door")) is None
    assert tell_actions([]) == "There is no possible action."
    assert tell_actions(["b", "a", "b"]) == "Possible actions:\na\nb"
    many = tell_actions([f"a{n:03}" for n in range(130)]).splitlines()
    assert (many[1], many[100], many[101]) == ("a000", "a099", "(30 more; name what they are to contain)")


def test_the_possible_actions_are_listed_only_where_they_are_told() -> None:
    asked = []

    def possible() -> list[str]:
        asked.append(True)
        return ["go", "look"]

    shown = {
        mode: (
            AdmissibleActions(mode).tools,
            AdmissibleActions(mode).answer("go", possible),
            AdmissibleActions(mode).answer("list actions g", possible),
            AdmissibleActions(mode).below("Here.", possible),
        )
        for mode in ("on_demand", "observation", "hidden")
    }
    listed = StepResult(observation="Possible actions:\ngo")
    assert shown == {
        "on_demand": ((do, list_actions), None, listed, "Here."),
        "observation": ((do,), None, listed, "Here.\n\nPossible actions:\ngo\nlook"),
        "hidden": ((do,), None, None, "Here."),
    }
    assert len(asked) == 3
