"""Advantages by hand, and what holds for all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentfly_lib.configs import AlgorithmConfig, CustomAdvantageConfig
from agentfly_lib.errors import ConfigError, LearnerError
from agentfly_lib.training.advantages import dr_grpo, estimator, gae, grpo, has_signal, rloo, whiten
from agentfly_lib.training.advantages.custom import load_advantage
from agentfly_lib.training.episodes import Episode

REWARDS = hnp.arrays(np.float64, st.integers(2, 16), elements=st.floats(-10, 10))


def test_two_right_and_two_wrong() -> None:
    # mean 1/2; sample variance 4 * (1/2)^2 / 3 = 1/3, std 0.5773503; A = +-0.5 / (0.5773503 + 1e-6) = +-0.8660239
    np.testing.assert_allclose(
        grpo(np.array([1.0, 0.0, 0.0, 1.0])), [0.8660239, -0.8660239, -0.8660239, 0.8660239], atol=1e-7
    )


def test_one_right_of_four() -> None:
    # mean 1/4; sample variance (9/16 + 3/16) / 3 = 1/4, std 1/2; A = 0.75 / 0.500001 and -0.25 / 0.500001
    np.testing.assert_allclose(grpo(np.array([0.0, 1.0, 0.0, 0.0])), [-0.499999, 1.499997, -0.499999, -0.499999])


def test_a_group_of_one_has_no_advantage() -> None:
    assert grpo(np.array([5.0])).tolist() == [0.0]
    assert grpo(np.array([])).tolist() == []


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [([], False), ([1.0], False), ([0.3, 0.3], False), ([0.3, 0.3 + 5e-9], False), ([0.3, 0.3 + 2e-8], True)],
)
def test_equal_rewards_carry_no_signal(rewards: list[float], signal: bool) -> None:
    assert has_signal(np.array(rewards)) is signal


@given(REWARDS, st.floats(-5, 5))
def test_advantages_do_not_depend_on_the_level_and_sum_to_zero(rewards: np.ndarray, shift: float) -> None:
    advantages = grpo(rewards)
    assert abs(advantages.sum()) < 1e-6
    if rewards.std() > 1e-3:
        np.testing.assert_allclose(grpo(rewards + shift), advantages, atol=1e-6)


def episode(
    outcome: float,
    tokens: tuple[int, ...] = (1,),
    rewards: tuple[float, ...] | None = None,
    states: tuple[str, ...] | None = None,
    **fields: object,
) -> Episode:
    """An episode whose turns have so many tokens, rewards and states."""
    return Episode(
        id=f"{outcome}-{tokens}",
        outcome=outcome,
        turn_of_token=np.repeat(np.arange(len(tokens)), tokens),
        turn_rewards=np.array(rewards or [0.0] * len(tokens)),
        states=states or tuple(map(str, range(len(tokens)))),
        **fields,
    )


def advantages(kind: str, *episodes: Episode, **settings: object) -> list[list[float]] | None:
    config = AlgorithmConfig.model_validate({"advantage": {"type": kind} | settings})
    found = estimator(config.advantage)(episodes)
    if found is None:
        return None
    return [each.tolist() for each in (whiten(found) if config.whitens else found)]


def test_without_the_spread() -> None:
    assert dr_grpo(np.array([1.0, 0.0, 0.0, 1.0])).tolist() == [0.5, -0.5, -0.5, 0.5]
    assert dr_grpo(np.array([5.0])).tolist() == [0.0]


def test_leave_one_out() -> None:
    # 1 - (0 + 0 + 1) / 3 = 2/3 for the first, 0 - (1 + 0 + 1) / 3 = -2/3 for the second
    np.testing.assert_allclose(rloo(np.array([1.0, 0.0, 0.0, 1.0])), [2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert rloo(np.array([5.0])).tolist() == [0.0]


@given(REWARDS)
def test_leave_one_out_is_the_reward_less_the_mean_of_the_others(rewards: np.ndarray) -> None:
    if has_signal(rewards):
        others = [np.delete(rewards, place).mean() for place in range(len(rewards))]
        np.testing.assert_allclose(rloo(rewards), rewards - others, atol=1e-9)


def test_returns_to_go_whitened_over_the_step() -> None:
    # Rewards at the last tokens: returns 1, 1 and 0. mean 2/3, var (1/9 + 1/9 + 4/9) / 2 = 1/3, std 0.5773503.
    found = advantages("reinforce_pp", episode(1.0, (2,)), episode(0.0))
    np.testing.assert_allclose(np.concatenate(found), [0.5773503, 0.5773503, -1.1547005], atol=1e-7)


def test_returns_to_go_less_a_penalty() -> None:
    # r = (-0.1, 1 - 0.2) and (0 - 0.3): returns 0.7, 0.8 and -0.3, mean 0.4, var (0.09 + 0.16 + 0.49) / 2 = 0.37.
    found = advantages(
        "reinforce_pp", episode(1.0, (2,), penalties=np.array([0.1, 0.2])), episode(0.0, penalties=np.array([0.3]))
    )
    np.testing.assert_allclose(np.concatenate(found), [0.4931970, 0.6575959, -1.1507929], atol=1e-6)


def test_returns_to_go_do_not_ask_which_turn_earned_the_outcome() -> None:
    soon, late = episode(1.0, (1, 1), rewards=(1.0, 0.0)), episode(1.0, (1, 1), rewards=(0.0, 1.0))
    assert soon.outcome_at_the_end.tolist() == late.outcome_at_the_end.tolist() == [0.0, 1.0]
    first, second, _ = advantages("reinforce_pp", soon, late, episode(0.0))
    assert first == second


def test_a_baseline_of_the_group_whitened_over_the_step() -> None:
    # 0.5, 0.5 and -0.5: mean 1/6, var (1/9 + 1/9 + 4/9) / 2 = 1/3
    found = advantages("reinforce_pp_baseline", episode(1.0, (2,)), episode(0.0))
    np.testing.assert_allclose(np.concatenate(found), [0.5773503, 0.5773503, -1.1547005], atol=1e-7)


WON = episode(1.0, (2, 1), rewards=(0.0, 1.0), states=("start", "door"))
LOST = episode(0.0, (1, 3), rewards=(0.0, 0.0), states=("start", "wall"))


def test_turns_that_began_in_the_same_state_are_compared() -> None:
    # Episodes 1 and 0: +-0.5 / 0.7071078 = +-0.7071058. Returns with gamma 1/2: (0.5, 1) and (0, 0). In `start` 0.5
    # and 0: +-0.25 / (0.3535534 + 1e-6) = +-0.7071048; `door` and `wall` were met once and give 0. omega = 2.
    first, second = advantages("gigpo", WON, LOST, gamma=0.5, omega=2.0)
    np.testing.assert_allclose(first, [2.1213154, 2.1213154, 0.7071058], atol=1e-6)
    np.testing.assert_allclose(second, [-2.1213154, -0.7071058, -0.7071058, -0.7071058], atol=1e-6)
    plain, _ = advantages("gigpo", WON, LOST, gamma=0.5, omega=2.0, normalise=False)
    np.testing.assert_allclose(plain, [0.5 + 2 * 0.25, 0.5 + 2 * 0.25, 0.5])


def test_equal_outcomes_may_differ_in_their_turns() -> None:
    # Both won, one a turn later: the return of `start` is 1 for the one and 0.5 for the other.
    late = episode(1.0, (1, 1), rewards=(0.0, 1.0), states=("start", "door"))
    soon = episode(1.0, (1,), rewards=(1.0,), states=("start",))
    first, second = advantages("gigpo", late, soon, gamma=0.5)
    np.testing.assert_allclose([*first, *second], [-0.7071048, 0, 0.7071048], atol=1e-6)
    assert advantages("gigpo", soon, soon) is None


def test_returns_of_turns_normalised_among_all_turns() -> None:
    # gamma 1/2: 0.5, 1, 0, 0. mean 0.375, var (0.015625 + 0.390625 + 2 * 0.140625) / 3 = 0.2291667, std 0.4787136
    first, second = advantages("turn_returns", WON, LOST, gamma=0.5)
    np.testing.assert_allclose(first, [0.2611159, 0.2611159, 1.3055797], atol=1e-6)
    np.testing.assert_allclose(second, [-0.7833478] * 4, atol=1e-6)
    assert advantages("turn_returns", WON) is None


def test_generalised_advantages() -> None:
    # d = (0.9 * 0.4 - 0.2, 0.9 * 0.6 - 0.4, 1 - 0.6) = (0.16, 0.14, 0.4); backwards with 0.9 * 0.5 = 0.45:
    # 0.4, 0.14 + 0.45 * 0.4 = 0.32, 0.16 + 0.45 * 0.32 = 0.304
    found = gae(np.array([0.0, 0.0, 1.0]), np.array([0.2, 0.4, 0.6]), gamma=0.9, lam=0.5)
    np.testing.assert_allclose(found, [0.304, 0.32, 0.4])


def test_generalised_advantages_with_lambda_one_are_returns_less_values() -> None:
    rewards, values = np.array([0.5, 0.0, 1.0]), np.array([0.2, 0.4, 0.6])
    np.testing.assert_allclose(gae(rewards, values, gamma=1.0, lam=1.0), [1.5 - 0.2, 1.0 - 0.4, 1.0 - 0.6])


def test_only_good_trajectories_are_accepted() -> None:
    assert advantages("accepted", episode(1.0, (2,)), episode(0.5), min_reward=0.8) == [[1.0, 1.0], [0.0]]
    assert advantages("accepted", episode(0.5)) is None
    assert advantages("accepted", episode(-3.0), min_reward="none") == [[1.0]]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "gigpo", "turn_returns"])
def test_a_group_of_one_and_a_group_of_equals_teach_nothing(kind: str) -> None:
    assert advantages(kind, episode(5.0)) is None
    assert advantages(kind, episode(0.5), episode(0.5 + 5e-9)) is None
    # A penalty differs between any two trajectories, and is no outcome.
    assert advantages(kind, episode(0.5, penalties=np.array([0.1])), episode(0.5, penalties=np.array([0.9]))) is None


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "gigpo", "turn_returns"])
def test_a_penalty_is_taken_from_the_reward(kind: str) -> None:
    # 1 - 0.4 and 0 - (-0.2): the better by 0.4, half of which is the distance to the mean
    first, second = advantages(kind, episode(1.0, penalties=np.array([0.4])), episode(0.0, penalties=np.array([-0.2])))
    scale = {"dr_grpo": 1.0, "rloo": 2.0}.get(kind, 1 / (0.4 / 2**0.5 + 1e-6))
    expected = 0.2 * scale * (2 if kind == "gigpo" else 1)
    np.testing.assert_allclose([first[0], second[0]], [expected, -expected], rtol=1e-9)


def test_whitening_nothing_and_one_token() -> None:
    assert whiten([]) == []
    assert [each.tolist() for each in whiten([np.array([3.0])])] == [[0.0]]


def test_rewards_of_turns_and_the_rest_add_up_to_the_outcome() -> None:
    # The environment gave 0.25 for the first turn; the reward says 1 in all, so 0.75 is left for the end.
    found = episode(1.0, (2, 2), rewards=(0.25, 0.0), penalties=np.array([0.1, 0, 0, 0.2]))
    assert found.rewards_of_tokens.tolist() == pytest.approx([-0.1, 0.25, 0.0, 0.75 - 0.2])
    assert found.rewards_of_turns.tolist() == pytest.approx([0.25 - 0.1, 0.75 - 0.2])
    assert found.reward == pytest.approx(0.7)


def by_median(episodes: list[Episode]) -> np.ndarray:
    rewards = np.array([each.reward for each in episodes])
    return rewards - np.median(rewards)


def too_few(episodes: list[Episode]) -> list[float]:
    return [0.0]


def of_wrong_shape(episodes: list[Episode]) -> list[np.ndarray]:
    return [np.zeros(each.num_tokens + 1) for each in episodes]


def not_finite(episodes: list[Episode]) -> list[float]:
    return [float("nan")] * len(episodes)


def test_an_estimator_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "my_advantages", sys.modules[__name__])

    def config(name: str) -> CustomAdvantageConfig:
        return CustomAdvantageConfig(function=f"my_advantages:{name}")

    episodes = [episode(1.0, (2,)), episode(0.0), episode(0.0)]
    assert [each.tolist() for each in estimator(config("by_median"))(episodes)] == [[1.0, 1.0], [0.0], [0.0]]
    with pytest.raises(LearnerError, match="1 advantages for 3 episodes"):
        estimator(config("too_few"))(episodes)
    with pytest.raises(LearnerError, match=r"shape \(3,\).*2 trained tokens"):
        estimator(config("of_wrong_shape"))(episodes)
    with pytest.raises(LearnerError, match="not finite"):
        estimator(config("not_finite"))(episodes)
    with pytest.raises(ConfigError, match="my_advantages has no nowhere"):
        load_advantage("my_advantages:nowhere")
    (tmp_path / "broken_advantages.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot import broken_advantages: ZeroDivisionError"):
        load_advantage("broken_advantages:mine")
    with pytest.raises(ConfigError, match="is a int; name a function"):
        load_advantage("my_advantages:REWARDS_FOR_TESTS")


REWARDS_FOR_TESTS = 3
