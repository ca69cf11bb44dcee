"""Gymnasium both ways: its environments are ours, ours are its, by its own checker."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from agentfly_lib.envs.environment import Environment
from agentfly_lib.envs.gym import KIND, GymnasiumEnvironment, GymnasiumSettings
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import ConfigError

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

LAKE = {
    "id": "FrozenLake-v1",
    "options": {"is_slippery": False},
    "actions": ("left", "down", "right", "up"),
}
WALK = ["down", "down", "right", "right", "down", "right"]


def test_a_walk_over_the_lake_is_worth_1() -> None:
    game = GymnasiumEnvironment(**LAKE)
    assert isinstance(game, Environment)
    assert game.reset({"seed": 0}) == "0"
    steps = [game.step(action) for action in WALK]
    assert [step.observation for step in steps] == ["4", "8", "9", "10", "14", "15"]
    assert [step.reward for step in steps] == [0.0] * 5 + [1.0]
    assert [step.done for step in steps] == [False] * 5 + [True]
    assert game.step("left").error == "The episode is over."
    game.reset({"seed": 0})
    assert [game.step(str(number)).observation for number in (1, 1, 2)] == ["4", "8", "9"]


def test_a_random_walker_drowns() -> None:
    game, draws = GymnasiumEnvironment(**LAKE), random.Random(0)
    returns = []
    for seed in range(20):
        game.reset({"seed": seed})
        total, done = 0.0, False
        while not done:
            step = game.step(draws.choice(LAKE["actions"]))
            total, done = total + step.reward, step.done
        returns.append(total)
    assert sum(returns) <= 2


@pytest.mark.parametrize("written", ["", "fly", "4", "-1", "٣", "1.0", "null", "\x00", "right " * 200_000])
def test_what_is_no_action_is_told(written: str) -> None:
    game = GymnasiumEnvironment(**LAKE)
    game.reset({"seed": 0})
    told = game.step(written)
    assert told.error
    assert not told.done
    assert len(told.observation) < 500
    assert game.step("down").observation == "4"


def test_steps_are_limited() -> None:
    game = GymnasiumEnvironment(**LAKE, max_steps=3)
    game.reset({"seed": 0})
    assert [game.step("left").done for _ in range(3)] == [False, False, True]


def test_numbers_and_lists_are_read_as_the_space_wants_them() -> None:
    game = GymnasiumEnvironment(id="MountainCarContinuous-v0")
    seen = game.reset({"seed": 3})
    assert game.reset({"seed": 3}) == seen
    assert seen.startswith("[-0.")
    assert game.step("[0.5]").error is None
    for wrong in ("0.5", "[2.0]", "[0.1, 0.1]", '["a"]', "{}", "[[[["):
        assert "is no action here" in game.step(wrong).observation, wrong


def test_a_maze_of_minigrid_in_a_process(monkeypatch) -> None:
    pytest.importorskip("minigrid", reason="minigrid is not installed")
    import asyncio

    settings = {
        "id": "MiniGrid-Empty-5x5-v0",
        "modules": ["minigrid"],
        "actions": ["left", "right", "forward", "pickup", "drop", "toggle", "done"],
    }
    spec = environment_spec("gymnasium", settings)
    spec.check()

    async def play() -> tuple[str, list]:
        async with spec.open() as instance:
            seen = await instance.reset({"seed": 5})
            walk = ["forward", "forward", "right", "forward", "forward"]
            return seen, [await instance.step(action) for action in walk]

    seen, steps = asyncio.run(play())
    assert seen.endswith("mission: get to the green goal square")
    assert [step.done for step in steps] == [False] * 4 + [True]
    assert steps[-1].reward == pytest.approx(1 - 0.9 * 5 / 100)  # Minigrid's own formula, with its 100 steps


def test_pictures_are_pictures_and_small_grids_are_numbers() -> None:
    import numpy as np

    from agentfly_lib.envs.gym import as_text

    text, pictures = as_text({"screen": np.zeros((32, 40, 3), np.uint8), "grid": np.zeros((2, 2, 3), np.uint8)})
    assert text == "screen: (see the picture)\ngrid: [[[0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]"
    assert [picture[:8] for picture in pictures] == [b"\x89PNG\r\n\x1a\n"]
    assert as_text((np.float32(0.5), True, "a")) == ('[0.5, true, "a"]', ())


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match="No module named 'nowhere_at_all'"):
        KIND.check(GymnasiumSettings(id="X-v0", modules=("nowhere_at_all",)))
    with pytest.raises(ConfigError, match="'FrozenLak-v1' cannot be made"):
        KIND.check(GymnasiumSettings(id="FrozenLak-v1"))


def test_problems_are_seeds_that_splits_do_not_share() -> None:
    train, held_out = (
        [row["seed"] for row in itertools.islice(KIND.problems(GymnasiumSettings(id="x"), split), 3)]
        for split in ("train", "eval")
    )
    assert train == [0, 1, 2]
    assert held_out == [2**30, 2**30 + 1, 2**30 + 2]


def test_ours_satisfy_gymnasiums_own_checker(odd) -> None:
    from gymnasium.utils.env_checker import check_env

    from agentfly_lib.envs.as_gymnasium import GymnasiumEnv

    env = GymnasiumEnv(odd.KIND, problems=5)
    check_env(env, skip_render_check=True)
    seen, info = env.reset(seed=1)
    assert seen == f"calm {info['problem']['word']}"
    observation, reward, terminated, truncated, info = env.step("go")
    assert (observation, reward, terminated, truncated) == ("1: go", 0.25, False, False)
    assert info["error"] is None
    assert env.reset(options={"problem": {"word": "own"}})[0] == "calm own"


def test_chess_by_gymnasium() -> None:
    pytest.importorskip("chess", reason="python-chess is not installed")
    from gymnasium.wrappers import TimeLimit

    from agentfly_lib.envs.as_gymnasium import GymnasiumEnv

    env = TimeLimit(GymnasiumEnv("chess", {"task": "game"}, problems=2), max_episode_steps=2)
    env.reset(seed=0)
    assert env.step("legal_moves")[2:4] == (False, False)
    assert env.step("legal_moves")[2:4] == (False, True)
    env.close()
