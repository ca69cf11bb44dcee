"""Every algorithm through a real learner: what may change (packing, accumulation) changes nothing, and PPO learns."""

from __future__ import annotations

import dataclasses
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
from safetensors.torch import load_file  # noqa: E402

from agentfly_lib.configs import AlgorithmConfig  # noqa: E402
from agentfly_lib.training.samples import Measured, build_samples  # noqa: E402
from agentfly_lib.types import TrajectoryGroup  # noqa: E402

Make = Callable[..., Any]

SMOOTH = {"lr": 0.3, "eps": 1.0, "max_grad_norm": 1e9, "minibatches": 2}
"""AdamW's step is then a smooth function of the gradient; the second minibatch meets a policy that has moved."""

ALGORITHMS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"advantage": {"type": "dr_grpo"}, "aggregation": {"type": "dr_grpo", "max_tokens": 40}},
    "rloo": {"advantage": {"type": "rloo"}, "aggregation": {"type": "seq_mean_token_mean"}},
    "cispo": {"loss": {"type": "cispo"}, "entropy_coefficient": 0.01},
    "gspo": {"loss": {"type": "gspo", "clip_low": 0.5, "clip_high": 0.5}, "correction": {"type": "tis_sequence"}},
    "mask_sequence": {"correction": {"type": "mask_sequence", "limit": 50.0}, "kl": {"coefficient": 0.1}},
    "mask_geometric": {"correction": {"type": "mask_geometric", "low": 0.5, "high": 2.0}},
    "reinforce_pp": {"advantage": {"type": "reinforce_pp"}, "kl": {"coefficient": 0.05}},
    "reinforce_pp_baseline": {"advantage": {"type": "reinforce_pp_baseline"}, "kl": {"coefficient": 0.05}},
    "ppo": {"advantage": {"type": "gae", "gamma": 0.99}, "kl": {"coefficient": 0.02, "place": "reward"}},
    "accepted": {"advantage": {"type": "accepted"}},
}


def weights(learner: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in learner.engine.policy.parameters()])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_change_nothing(learner: Make, factories: ModuleType, name: str) -> None:
    """One trajectory of each group has two segments, which small micro-batches tear apart."""
    results, metrics = [], []
    for tokens in (10_000, 48, 1):
        subject = learner(
            optim=SMOOTH,
            algorithm=ALGORITHMS[name],
            learner={"microbatch_tokens": tokens, "logit_chunk_tokens": 7 if tokens == 48 else 4096},
        )
        reports = [subject.update_from(factories.step_groups(step), step) for step in (0, 1)]
        results.append(weights(subject))
        metrics.append(reports[1].metrics)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=2e-6)
    for key in ("policy_loss", "ratio", "correction_weight", "kl_loss", "mismatch_kl", "effective_sample_size"):
        names = [each for each in metrics[0] if each.startswith(f"train/{key}/")]
        for each in names:
            assert metrics[2][each] == pytest.approx(metrics[0][each], rel=1e-3, abs=1e-6), each


def lucky_tokens(step: int, factories: ModuleType) -> list[TrajectoryGroup]:
    """Trajectories whose reward is the share of small ids among what was sampled: every prompt is worth the same."""
    groups = []
    for group in factories.step_groups(step):
        members = []
        for item in group.trajectories:
            ids = np.concatenate([part.token_ids[part.loss_mask] for part in item.segments])
            members.append(dataclasses.replace(item, reward=float(np.mean(ids < 64))))
        groups.append(dataclasses.replace(group, trajectories=tuple(members)))
    return groups


def test_the_value_head_learns_what_may_be_expected(learner: Make, factories: ModuleType) -> None:
    subject = learner(
        algorithm={"advantage": {"type": "gae", "value_coefficient": 1.0}},
        optim={"lr": 3e-3, "minibatches": 4},
        run={"steps": 40},
    )
    losses = [
        subject.update_from(lucky_tokens(step % 4, factories), step).metrics["train/value_loss/mean"]
        for step in range(10)
    ]
    # Rewards are near 1/2, and the head begins at 0: about half of a quarter in the first minibatch, less in the next.
    assert 0.03 < losses[0] < 0.2
    assert sum(losses[-2:]) / 2 < losses[0] / 2


def test_ppo_by_hand_before_any_update(factories: ModuleType) -> None:
    # Two trajectories of two trained tokens; penalties and values as if measured. gamma = lam = 1.
    # Rewards (-0.1, 1 - 0.1) and (0, -0.3); values (0.2, 0.4) and (0.1, 0.1).
    # A = (0.8 - 0.2, 0.9 - 0.4) = (0.6, 0.5) and (-0.3 - 0.1, -0.3 - 0.1) = (-0.4, -0.4); returns 0.8, 0.9, -0.3, -0.3.
    # mean 0.075, var (0.525^2 + 0.425^2 + 2 * 0.475^2) / 3 = 0.3025, std 0.55: 0.9545455, 0.7727273, -0.8636364 twice.
    algorithm = AlgorithmConfig.model_validate(
        {"advantage": {"type": "gae", "lam": 1.0}, "kl": {"coefficient": 1.0, "place": "reward"}}
    )
    rng = np.random.default_rng(0)
    members = [
        factories.trajectory("g", chain, (factories.segment(rng, 6, sampled=slice(4, 6)),), reward)
        for chain, reward in enumerate((1.0, 0.0))
    ]
    step = build_samples([factories.group("g", members)], algorithm)
    measured, returns = step.measured(
        [
            Measured(penalties=np.array([0.1, 0.1]), values=np.array([0.2, 0.4])),
            Measured(penalties=np.array([0.0, 0.3]), values=np.array([0.1, 0.1])),
        ]
    )
    found = np.concatenate([sample.advantages for sample in measured.samples])
    np.testing.assert_allclose(found, [0, 0, 0, 0, 0.9545455, 0.7727273, 0, 0, 0, 0, -0.8636364, -0.8636364], atol=1e-6)
    np.testing.assert_allclose(np.concatenate(returns), [0.8, 0.9, -0.3, -0.3], atol=1e-12)
    assert measured.report.advantage_max_abs == pytest.approx(0.9545455, abs=1e-6)


def test_a_value_head_goes_on_from_a_checkpoint_and_is_no_part_of_the_model(
    learner: Make, factories: ModuleType, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {
        "algorithm": {"advantage": {"type": "gae"}, "kl": {"coefficient": 0.02, "place": "reward"}},
        "optim": {"minibatches": 2},
    }
    subject = learner(**sections)
    subject.update_from(factories.step_groups(0), 0)
    ref = factories.saved(subject, tmp_path / "000001")
    through = subject.update_from(factories.step_groups(1), 1).weights_digest
    end = weights(subject)
    resumed = learner(checkpoint=ref, **sections)
    assert resumed.update_from(factories.step_groups(1), 1).weights_digest == through
    assert torch.equal(weights(resumed), end)
    assert not any("value" in name for name in load_file(ref.path / "hf" / "model.safetensors"))


def test_one_chain_is_enough_where_the_step_is_the_comparison(learner: Make, factories: ModuleType) -> None:
    subject = learner(algorithm={"advantage": {"type": "reinforce_pp"}}, rollout={"problems_per_step": 8, "chains": 1})
    report = subject.update_from(factories.step_groups(0, groups=8, chains=1), 0)
    assert report.metrics["train/trained_trajectories/count"] == 8
    assert report.metrics["train/grad_norm/mean"] > 0
    assert report.metrics["train/advantage/max_abs"] > 0


def test_the_ablation_trains_on_every_token_that_something_precedes(learner: Make, factories: ModuleType) -> None:
    groups = factories.step_groups(0)
    plain = build_samples(groups, AlgorithmConfig()).report
    subject = learner(algorithm={"ablation_train_on_all_tokens": True})
    report = subject.update_from(groups, 0)
    assert report.metrics["train/loss_tokens/count"] == plain.tokens - plain.samples
    assert report.metrics["train/missing_logprobs/count"] == plain.tokens - plain.samples - plain.loss_tokens


def test_entropy_can_be_a_bonus(learner: Make, factories: ModuleType) -> None:
    entropies = {}
    for coefficient in (0.0, 0.5):
        subject = learner(algorithm={"entropy_coefficient": coefficient}, optim={"lr": 1e-2})
        for step in range(4):
            metrics = subject.update_from(factories.step_groups(step), step).metrics
        entropies[coefficient] = metrics["train/entropy/mean"]
    assert entropies[0.5] > entropies[0.0] + 0.01
