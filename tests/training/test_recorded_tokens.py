"""What an update leaves of every token for those who look at it, against log-probs computed on their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402

pytest.importorskip("deepspeed")

from agentfly_lib.store import RolloutStore, StepDirectory  # noqa: E402
from agentfly_lib.store.learned import LearnedTokens, read_learned  # noqa: E402
from agentfly_lib.types import TrajectoryGroup  # noqa: E402


def logprobs(model: Path, token_ids: np.ndarray) -> np.ndarray:
    """By transformers' own attention, one sequence alone; the first token has none."""
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    ids = torch.from_numpy(token_ids).long()
    rows = torch.log_softmax(policy(ids[None]).logits[0], -1)
    return np.concatenate([[np.nan], rows[:-1].gather(1, ids[1:, None])[:, 0].detach().numpy()])


@pytest.fixture
def step(tmp_path: Path) -> StepDirectory:
    directory = StepDirectory(tmp_path / "step")
    RolloutStore.open(directory, step=0, policy_version=0, group_ids=["any"], chains=1)
    return directory


def recorded(step: StepDirectory, groups: list[TrajectoryGroup]) -> dict[tuple[str, int], LearnedTokens]:
    return read_learned(step, [each.id for group in groups for each in group.trajectories])


def test_ratios_are_those_of_the_update(
    learner: Callable[..., Any], factories: ModuleType, tiny_model: Path, step: StepDirectory
) -> None:
    groups = factories.step_groups(0)
    learner(optim={"minibatches": 2, "lr": 1e-2}).update_from(groups, 0, directory=step)
    found = recorded(step, groups)
    assert found
    trajectories = {each.id: each for group in groups for each in group.trajectories}
    moved = []
    for (name, number), tokens in found.items():
        segment = trajectories[name].segments[number]
        own = np.where(segment.loss_mask, logprobs(tiny_model, segment.token_ids), np.nan)
        np.testing.assert_allclose(tokens.old_logprobs, own, atol=2e-5)  # before the step, in both minibatches
        moved.append(not np.allclose(tokens.logprobs, tokens.old_logprobs, atol=1e-4, equal_nan=True))
        rewards = [each.reward for group in groups if group.id == name.split("/")[0] for each in group.trajectories]
        advantage = (trajectories[name].reward - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-6)
        np.testing.assert_allclose(tokens.advantages[segment.loss_mask], advantage, rtol=1e-5)
    assert any(moved)  # the second minibatch met a policy that the first had changed
    assert not all(moved)


def test_a_step_with_nothing_to_train_on_leaves_no_tokens(
    learner: Callable[..., Any], factories: ModuleType, step: StepDirectory
) -> None:
    groups = factories.step_groups(0, chains=1)  # nothing to compare with
    report = learner().update_from(groups, 0, directory=step)
    assert report.policy_version == 1
    assert report.metrics["train/empty_updates/count"] == 1
    assert step.learned_file.exists()
    assert recorded(step, groups) == {}


def test_a_disk_that_refuses_costs_no_step(
    learner: Callable[..., Any], factories: ModuleType, step: StepDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    step.learned_file.parent.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        report = learner().update_from(factories.step_groups(0), 0, directory=step)
    assert report.policy_version == 1
    assert report.metrics["train/unrecorded_steps/count"] == 1
    assert "is not kept" in caplog.text
