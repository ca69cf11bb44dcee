"""reasoning-gym: the known answer is worth 1, another one is not; what a verifier cannot read is a wrong answer."""

from __future__ import annotations

import itertools
import random

import pytest

from agentfly_lib.envs.environment import Environment
from agentfly_lib.envs.reasoning_gym import KIND, ReasoningGym, ReasoningGymSettings
from agentfly_lib.envs.session import EnvironmentSession
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import ConfigError

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
TASKS = ("chain_sum", "leg_counting", "spell_backward", "prime_factorization")


def problems(count: int, split: str = "train", **settings):
    return list(itertools.islice(KIND.problems(ReasoningGymSettings(**settings), split), count))


def known_answer(row) -> str:
    import reasoning_gym

    return reasoning_gym.create_dataset(row["task"], seed=row["seed"], size=10_000)[row["index"]]["answer"]


def test_the_known_answer_is_worth_1_and_a_random_one_is_not() -> None:
    game, draws = ReasoningGym(tasks=TASKS), random.Random(0)
    assert isinstance(game, Environment)
    rows = problems(12, tasks=TASKS)
    assert [row["task"] for row in rows] == [*TASKS] * 3
    oracle, guesser = [], []
    for row in rows:
        assert game.reset(row) == ""
        done = game.step(known_answer(row))
        assert done.done
        oracle.append(done.reward)
        game.reset(row)
        guesser.append(game.step(str(draws.randint(0, 9999))).reward)
    assert oracle == [1.0] * 12
    assert sum(guesser) < 1


def test_a_problem_by_hand() -> None:
    game = ReasoningGym(tasks=("chain_sum",))
    (row,) = [
        row for row in problems(200, held_out=1) if row["question"].count("+") == 1 and "-" not in row["question"]
    ][:1]
    left, right = row["question"].partition(": ")[2].removesuffix(" =").split(" + ")
    game.reset(row)
    assert game.step(str(int(left) + int(right))).reward == 1.0
    game.reset(row)
    assert game.step(str(int(left) + int(right) + 1)).reward < 0.1


@pytest.mark.parametrize("written", ["", "xyzzy", "1 x x", "\x00\ud800", "9" * 5000, "[[[[" * 1000])
def test_whatever_is_written_is_an_answer(written: str) -> None:
    game = ReasoningGym(tasks=("prime_factorization",))
    (row,) = problems(1, tasks=("prime_factorization",), held_out=1)
    game.reset(row)
    done = game.step(written)
    assert done.done
    assert done.reward < 0.1
    assert game.step(written).error


def test_a_long_answer_is_no_answer_yet() -> None:
    game = ReasoningGym(tasks=("chain_sum",))
    (row,) = problems(1, held_out=1)
    game.reset(row)
    assert not game.step("1" * 1_000_000).done
    assert game.step(known_answer(row)).reward == 1.0
    game.close()
    game.close()


def test_problems_are_the_same_every_time_and_none_is_in_both_splits() -> None:
    settings = {"tasks": ("chain_sum",), "config": {"chain_sum": {"max_terms": 2, "max_digits": 1}}, "held_out": 20}
    train, held_out = problems(30, **settings), problems(20, "eval", **settings)
    assert train == problems(30, **settings)
    questions = {row["question"] for row in train}
    assert len(questions) == 30
    assert not questions & {row["question"] for row in held_out}
    few = problems(10_000, **settings)
    assert 100 < len(few) <= 200 - 20  # sums and differences of two digits
    assert problems(1, seed=1) != problems(1)


async def test_in_a_process_of_its_own() -> None:
    (row,) = problems(1, held_out=1)
    async with environment_spec("reasoning_gym").open() as instance:
        session = EnvironmentSession(KIND, instance, row)
        done = await session.step(known_answer(row))
    assert (done.total, done.step.done) == (1.0, True)


def test_what_does_not_exist_is_named() -> None:
    KIND.check(ReasoningGymSettings(tasks=TASKS))
    with pytest.raises(ConfigError, match="there is no task 'chain_sun'; did you mean 'chain_sum'"):
        KIND.check(ReasoningGymSettings(tasks=("chain_sun",)))
    with pytest.raises(ConfigError, match=r"config\.chain_sum does not fit: .*lenght"):
        KIND.check(ReasoningGymSettings(config={"chain_sum": {"lenght": 3}}))
