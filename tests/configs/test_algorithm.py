"""What an algorithm's parts decide about each other, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentfly_lib.configs import AlgorithmConfig, RunConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.preflight import check_run


def algorithm(**values: Any) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate(values)


def test_the_defaults() -> None:
    plain = algorithm()
    assert (plain.advantage.type, plain.loss.type, plain.aggregation.type) == ("grpo", "ppo", "token_mean")
    assert (plain.correction.type, plain.kl.coefficient, plain.entropy_coefficient) == ("tis_token", 0.0, 0.0)
    assert not plain.ablation_train_on_all_tokens


def test_a_section_without_a_type_is_the_usual_one() -> None:
    assert algorithm(loss={"clip_low": 0.1}).loss.type == "ppo"
    assert algorithm(correction={"cap": 3.0}).correction.type == "tis_token"


def test_what_follows_from_what() -> None:
    assert algorithm(loss={"type": "gspo"}).aggregation.type == "seq_mean_token_mean"
    kl = algorithm(advantage={"type": "reinforce_pp"}, kl={"coefficient": 0.01}).kl
    assert (kl.estimator, kl.place) == ("k1", "reward")
    kl = algorithm(advantage={"type": "reinforce_pp_baseline"}, kl={"coefficient": 0.01}).kl
    assert (kl.estimator, kl.place) == ("k2", "loss")
    imitation = algorithm(advantage={"type": "accepted"})
    assert (imitation.loss.type, imitation.correction.type) == ("nll", "none")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"loss": {"type": "gspo"}, "aggregation": {"type": "token_mean"}}, "a mean over trajectories"),
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, "gradient whose mean is zero"),
        ({"loss": {"type": "nll"}}, "maximum likelihood"),
        ({"advantage": {"type": "accepted"}, "loss": {"type": "ppo"}}, "maximum likelihood"),
        ({"advantage": {"type": "accepted"}, "correction": {"type": "tis_token"}}, "no ratio"),
        (
            {"advantage": {"type": "accepted"}, "kl": {"coefficient": 0.1, "place": "reward"}},
            "does not read rewards token by token",
        ),
        (
            {"advantage": {"type": "reinforce_pp"}, "kl": {"coefficient": 0.1, "place": "loss", "estimator": "k3"}},
            "is defined with kl.estimator='k1'",
        ),
        ({"mask_truncated": True, "kl": {"coefficient": 0.1, "place": "reward"}}, "leaves trajectories unmeasured"),
        ({"advantage": {"type": "custom", "function": "no colon"}}, "pattern"),
    ],
)
def test_what_does_not_go_together(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        algorithm(**values)


SMALLEST = {"run": {"name": "x"}, "model": {"type": "tiny"}, "data": {"type": "arithmetic"}}


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "gigpo", "turn_returns"])
def test_one_chain_has_nothing_to_be_compared_with(kind: str) -> None:
    values = SMALLEST | {"rollout": {"chains": 1}, "algorithm": {"advantage": {"type": kind}}}
    with pytest.raises(ValidationError, match=r"chains=1 gives every group an advantage of 0.*reinforce_pp"):
        RunConfig.model_validate(values)


@pytest.mark.parametrize("kind", ["reinforce_pp", "gae", "accepted"])
def test_one_chain_is_enough_where_no_group_is_compared(kind: str) -> None:
    values = SMALLEST | {"rollout": {"chains": 1}, "algorithm": {"advantage": {"type": kind}}}
    assert RunConfig.model_validate(values).rollout.chains == 1
    values["rollout"]["dynamic_sampling"] = {"type": "signal"}
    with pytest.raises(ValidationError, match="compares the chains of a problem"):
        RunConfig.model_validate(values)


def test_a_function_of_ones_own_is_looked_for_before_anything_starts() -> None:
    advantage = {"type": "custom", "function": "nowhere.at_all:mine"}
    with pytest.raises(ConfigError, match="cannot import"):
        check_run(RunConfig.model_validate(SMALLEST | {"algorithm": {"advantage": advantage}}))


def test_the_ablation_is_loud(caplog: pytest.LogCaptureFixture) -> None:
    check_run(RunConfig.model_validate(SMALLEST | {"algorithm": {"ablation_train_on_all_tokens": True}}))
    assert "ABLATION" in caplog.text
