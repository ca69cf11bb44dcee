"""The learning rate by hand."""

from __future__ import annotations

import pytest

from agentfly_lib.configs import OptimConfig
from agentfly_lib.training.schedule import learning_rate


def rates(optim: OptimConfig, steps: int) -> list[float]:
    return [
        learning_rate(optim, step=step, minibatch=minibatch, total_steps=steps)
        for step in range(steps)
        for minibatch in range(optim.minibatches)
    ]


def test_constant_by_default() -> None:
    assert rates(OptimConfig(lr=0.5), 3) == [0.5, 0.5, 0.5]


def test_decays_linearly_from_the_first_to_the_last_update() -> None:
    assert rates(OptimConfig(lr=1.0, final_lr_fraction=0.1, minibatches=2), 2) == pytest.approx([1.0, 0.7, 0.4, 0.1])


def test_warms_up_over_its_steps_to_the_full_rate() -> None:
    optim = OptimConfig(lr=1.0, warmup_steps=2, minibatches=2)
    assert rates(optim, 3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_a_run_that_is_continued_longer_than_planned_stays_at_the_end() -> None:
    optim = OptimConfig(lr=1.0, final_lr_fraction=0.1)
    assert learning_rate(optim, step=99, minibatch=0, total_steps=10) == pytest.approx(0.1)
