"""Shares of tokens by hand, and that they are those of the whole batch."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from agentfly_lib.training.aggregation import token_shares, trajectory_lengths

LENGTHS = {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("aggregation", "shares"),
    [
        ({"type": "token_mean"}, {"a": 1 / 4, "b": 1 / 4}),
        # B = 2: 1 / (2 * 1) and 1 / (2 * 3)
        ({"type": "seq_mean_token_mean"}, {"a": 1 / 2, "b": 1 / 6}),
        ({"type": "dr_grpo", "max_tokens": 10}, {"a": 1 / 20, "b": 1 / 20}),
        ({"type": "dr_grpo"}, {"a": 1 / 200, "b": 1 / 200}),  # rollout.max_sampled_tokens
    ],
    ids=str,
)
def test_shares_by_hand(factories: ModuleType, aggregation: dict[str, Any], shares: dict[str, float]) -> None:
    config = factories.run_config(
        algorithm={"aggregation": aggregation}, rollout={"max_sampled_tokens": 100, "max_turn_tokens": 50}
    )
    assert token_shares(LENGTHS, config) == pytest.approx(shares)


def test_a_batch_of_nothing_divides_by_nothing(factories: ModuleType) -> None:
    for name in ("token_mean", "seq_mean_token_mean", "dr_grpo"):
        assert token_shares({}, factories.run_config(algorithm={"aggregation": {"type": name}})) == {}


def test_lengths_are_of_whole_trajectories_and_rows_without_trained_tokens_are_not_counted(
    factories: ModuleType,
) -> None:
    one, two, three = factories.samples(0, [16, 24, 32])
    second = dataclasses.replace(two, trajectory_id=one.trajectory_id)
    masked = dataclasses.replace(three, loss_mask=np.zeros(32, np.bool_))
    assert trajectory_lengths([one, second, masked]) == {"t000": one.num_loss_tokens + two.num_loss_tokens}
