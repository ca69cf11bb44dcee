"""The same tensors through public implementations: verl's core algorithms and TRL's GRPO loss.

Opt-in, because neither is a dependency: `make oracles` makes an environment that has them beside ours, and runs this.
Where a public implementation defines something else on purpose, the difference is asserted with its size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.stack, pytest.mark.slow]

pytest.importorskip("torch")
import torch  # noqa: E402

from agentfly_lib.configs import AlgorithmConfig  # noqa: E402
from agentfly_lib.training.advantages import estimator, gae, whiten  # noqa: E402
from agentfly_lib.training.aggregation import AGGREGATIONS  # noqa: E402
from agentfly_lib.training.episodes import Episode  # noqa: E402
from agentfly_lib.training.losses import KL_ESTIMATORS, SUMS, PolicyLoss, Trajectories, policy_loss  # noqa: E402

ABSENT = "{} is not installed; `make oracles` compares with it in an environment of its own"
GROUPS, CHAINS, TOKENS = 3, 4, 9
ROWS = GROUPS * CHAINS


@pytest.fixture(scope="module")
def verl() -> Any:
    return pytest.importorskip("verl.trainer.ppo.core_algos", reason=ABSENT.format("verl 0.9.1"), exc_type=ImportError)


@pytest.fixture(scope="module")
def trl() -> Any:
    reason = ABSENT.format("trl 1.16.0")
    return pytest.importorskip("trl.trainer.grpo_trainer", reason=reason, exc_type=ImportError)


class Tensors:
    """A batch as rectangles, as the public implementations take it, with holes in the masks as tool results make."""

    def __init__(self, seed: int = 0) -> None:
        make = torch.Generator().manual_seed(seed)
        self.mask = (torch.rand(ROWS, TOKENS, generator=make) < 0.6).float()
        self.mask[:, 2] = 1
        self.old = torch.randn(ROWS, TOKENS, generator=make) * 0.5 - 2
        self.logprobs = self.old + torch.randn(ROWS, TOKENS, generator=make) * 0.3
        self.recorded = self.old + torch.randn(ROWS, TOKENS, generator=make) * 0.1
        self.reference = self.old + torch.randn(ROWS, TOKENS, generator=make) * 0.2
        self.values = torch.randn(ROWS, TOKENS, generator=make)
        self.rewards = torch.rand(ROWS, generator=make)
        self.advantages = torch.randn(ROWS, 1, generator=make).expand(-1, TOKENS).contiguous()
        self.index = np.repeat(np.arange(GROUPS), CHAINS)

    @property
    def lengths(self) -> torch.Tensor:
        return self.mask.sum(-1)

    def flat(self, rectangle: torch.Tensor) -> torch.Tensor:
        return rectangle[self.mask.bool()]

    def token_rewards(self) -> torch.Tensor:
        """Each trajectory's reward at its last trained token."""
        rewards = torch.zeros(ROWS, TOKENS)
        for row in range(ROWS):
            rewards[row, int(self.mask[row].nonzero().max())] = self.rewards[row]
        return rewards

    def episodes(self, penalties: torch.Tensor | None = None) -> list[list[Episode]]:
        made = [
            Episode(
                id=str(row),
                outcome=float(self.rewards[row]),
                turn_of_token=np.zeros(int(self.lengths[row]), np.intp),
                turn_rewards=np.zeros(1),
                states=("",),
                penalties=None if penalties is None else penalties[row][self.mask[row].bool()].double().numpy(),
            )
            for row in range(ROWS)
        ]
        return [made[first : first + CHAINS] for first in range(0, ROWS, CHAINS)]

    def ours(self, algorithm: AlgorithmConfig, *, longest: int = TOKENS, **others: Any) -> tuple[PolicyLoss, Any]:
        """Our loss and its gradient as a rectangle."""
        logprobs = self.logprobs.clone().requires_grad_()
        lengths = {str(row): int(count) for row, count in enumerate(self.lengths)}
        shares = AGGREGATIONS[algorithm.aggregation.type](lengths, longest)
        rows = torch.arange(ROWS)[:, None].expand(-1, TOKENS)
        loss = policy_loss(
            self.flat(logprobs),
            old=self.flat(self.old),
            recorded=self.flat(self.recorded),
            advantages=self.flat(self.advantages),
            shares=torch.tensor([shares[str(int(row))] for row in self.flat(rows)]),
            algorithm=algorithm,
            trajectories=Trajectories(index=self.flat(rows), lengths=self.lengths),
            **others,
        )
        loss.loss.backward()
        return loss, logprobs.grad


def config(**values: Any) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate({"correction": {"type": "none"}} | values)


def our_advantages(batch: Tensors, algorithm: AlgorithmConfig, penalties: torch.Tensor | None = None) -> torch.Tensor:
    found = []
    for group in batch.episodes(penalties):
        advantages = estimator(algorithm.advantage)(group)
        assert advantages is not None
        found += advantages
    if algorithm.whitens:
        found = whiten(found)
    rectangle = torch.zeros(ROWS, TOKENS)
    rectangle[batch.mask.bool()] = torch.from_numpy(np.concatenate(found)).float()
    return rectangle


def actor(**values: Any) -> Any:
    from verl.workers.config import ActorConfig

    return ActorConfig(strategy="fsdp", rollout_n=CHAINS, ppo_micro_batch_size_per_gpu=1, **values)


class TestVerl:
    @pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "reinforce_pp"])
    def test_advantages(self, verl: Any, kind: str) -> None:
        batch = Tensors()
        rewards = batch.token_rewards()
        theirs = {
            "grpo": lambda: verl.compute_grpo_outcome_advantage(rewards, batch.mask, batch.index),
            "dr_grpo": lambda: verl.compute_grpo_outcome_advantage(
                rewards, batch.mask, batch.index, norm_adv_by_std_in_grpo=False
            ),
            "rloo": lambda: verl.compute_rloo_outcome_advantage(rewards, batch.mask, batch.index),
            "reinforce_pp_baseline": lambda: verl.compute_reinforce_plus_plus_baseline_outcome_advantage(
                rewards, batch.mask, batch.index
            ),
            "reinforce_pp": lambda: verl.compute_reinforce_plus_plus_outcome_advantage(
                rewards, batch.mask, config=SimpleNamespace(gamma=1.0)
            ),
        }[kind]()[0]
        torch.testing.assert_close(
            our_advantages(batch, config(advantage={"type": kind})), theirs, rtol=1e-4, atol=2e-6
        )

    def test_returns_less_a_penalty(self, verl: Any) -> None:
        batch = Tensors()
        penalties = 0.1 * KL_ESTIMATORS["k1"](batch.old, batch.reference)
        theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(
            (batch.token_rewards() - penalties) * batch.mask, batch.mask, config=SimpleNamespace(gamma=1.0)
        )
        ours = our_advantages(batch, config(advantage={"type": "reinforce_pp"}), penalties)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)

    def test_generalised_advantages_skip_what_was_not_sampled(self, verl: Any) -> None:
        batch = Tensors()
        theirs, returns = verl.compute_gae_advantage_return(batch.token_rewards(), batch.values, batch.mask, 0.98, 0.9)
        raw = [
            gae(
                batch.token_rewards()[row][batch.mask[row].bool()].double().numpy(),
                batch.values[row][batch.mask[row].bool()].double().numpy(),
                gamma=0.98,
                lam=0.9,
            )
            for row in range(ROWS)
        ]
        torch.testing.assert_close(torch.from_numpy(np.concatenate(whiten(raw))).float(), batch.flat(theirs))
        ours = torch.from_numpy(np.concatenate(raw)).float() + batch.flat(batch.values)
        torch.testing.assert_close(ours, batch.flat(returns))

    def test_a_group_of_one_differs_on_purpose(self, verl: Any) -> None:
        """verl gives A = R (a mean of 0), we give nothing: one trajectory has nothing to be compared with."""
        one = torch.ones(1, 1)
        theirs, _ = verl.compute_grpo_outcome_advantage(0.7 * one, one, np.array([0]), norm_adv_by_std_in_grpo=False)
        assert theirs.item() == pytest.approx(0.7)
        alone = Tensors().episodes()[0][:1]
        assert estimator(config(advantage={"type": "dr_grpo"}).advantage)(alone) is None

    @pytest.mark.parametrize(
        ("ours", "theirs", "scale"),
        [
            ("token_mean", "token-mean", 1.0),
            ("seq_mean_token_mean", "seq-mean-token-mean", 1.0),
            ("dr_grpo", "seq-mean-token-sum-norm", 1.0),
        ],
    )
    def test_clipped_losses_in_every_aggregation(self, verl: Any, ours: str, theirs: str, scale: float) -> None:
        batch = Tensors()
        logprobs = batch.logprobs.clone().requires_grad_()
        expected, metrics = verl.compute_policy_loss_vanilla(
            batch.old,
            logprobs,
            batch.advantages,
            batch.mask,
            theirs,
            actor(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0),
        )
        expected.backward()
        loss, gradient = batch.ours(config(aggregation={"type": ours}))
        torch.testing.assert_close(loss.loss.detach(), expected.detach() * scale)
        torch.testing.assert_close(gradient, logprobs.grad)
        clipped = float(loss.sums[SUMS.index("clipped_high")] + loss.sums[SUMS.index("clipped_low")])
        assert clipped / float(batch.mask.sum()) == pytest.approx(metrics["actor/pg_clipfrac"])

    def test_sequence_ratios(self, verl: Any) -> None:
        batch = Tensors()
        logprobs = batch.logprobs.clone().requires_grad_()
        expected, _ = verl.compute_policy_loss_gspo(
            batch.old,
            logprobs,
            batch.advantages,
            batch.mask,
            "seq-mean-token-mean",
            actor(clip_ratio_low=0.05, clip_ratio_high=0.05),
        )
        expected.backward()
        loss, gradient = batch.ours(config(loss={"type": "gspo", "clip_low": 0.05, "clip_high": 0.05}))
        torch.testing.assert_close(loss.loss.detach(), expected.detach())
        torch.testing.assert_close(gradient, logprobs.grad)

    def test_capped_ratios_differ_below_on_purpose(self, verl: Any) -> None:
        """verl's CISPO bounds the ratio from below too; with the bound out of reach it is the same."""
        batch = Tensors()
        logprobs = batch.logprobs.clone().requires_grad_()
        expected, _ = verl.compute_policy_loss_cispo(
            batch.old,
            logprobs,
            batch.advantages,
            batch.mask,
            "token-mean",
            actor(clip_ratio_low=1.0, clip_ratio_high=0.2),
        )
        expected.backward()
        loss, gradient = batch.ours(config(loss={"type": "cispo", "cap": 1.2}))
        torch.testing.assert_close(loss.loss.detach(), expected.detach())
        torch.testing.assert_close(gradient, logprobs.grad)

    def test_divergences(self, verl: Any) -> None:
        batch = Tensors()
        for name in ("k1", "k2", "k3"):
            theirs = verl.kl_penalty(batch.logprobs, batch.reference, name)
            torch.testing.assert_close(KL_ESTIMATORS[name](batch.logprobs, batch.reference), theirs)

    def test_value_losses(self, verl: Any) -> None:
        batch = Tensors()
        returns, values = batch.values + 0.7, batch.values + 0.3 * torch.sign(batch.advantages)
        expected, _ = verl.compute_value_loss(values, returns, batch.values, batch.mask, cliprange_value=0.2)
        algorithm = config(advantage={"type": "gae", "value_coefficient": 1.0})
        loss, _ = batch.ours(
            algorithm,
            values=batch.flat(values),
            old_values=batch.flat(batch.values),
            returns=batch.flat(returns),
        )
        ours = float(loss.sums[SUMS.index("value_loss")]) / float(batch.mask.sum())
        assert ours == pytest.approx(float(expected), rel=1e-5)

    @pytest.mark.parametrize(("ours", "theirs"), [("tis_token", "token"), ("tis_sequence", "sequence")])
    def test_truncated_weights(self, verl: Any, ours: str, theirs: str) -> None:
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

        batch = Tensors()
        weights, metrics = compute_rollout_correction_weights(
            batch.old - batch.recorded, batch.mask, rollout_is=theirs, rollout_is_threshold=1.1
        )
        logprobs = batch.logprobs.clone().requires_grad_()
        expected, _ = verl.compute_policy_loss_vanilla(
            batch.old,
            logprobs,
            batch.advantages,
            batch.mask,
            "token-mean",
            actor(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0),
            weights,
        )
        expected.backward()
        loss, gradient = batch.ours(config(correction={"type": ours, "cap": 1.1}))
        torch.testing.assert_close(loss.loss.detach(), expected.detach())
        torch.testing.assert_close(gradient, logprobs.grad)
        assert math.isfinite(metrics["rollout_is_eff_sample_size"])

    def test_the_geometric_mask_keeps_the_same_trajectories_and_another_denominator(self, verl: Any) -> None:
        """verl takes what is rejected out of the response mask, and so out of the denominators; here the weight is 0
        and the token still counts, so that a step's scale does not depend on how many were rejected."""
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask

        batch = Tensors()
        kept, _ = compute_rollout_rejection_mask(
            batch.old - batch.recorded, batch.mask, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.97_1.03"
        )
        algorithm = config(correction={"type": "mask_geometric", "low": 0.97, "high": 1.03})
        loss, gradient = batch.ours(algorithm)
        assert 0 < int(kept.sum()) < int(batch.mask.sum())
        rejected = (batch.mask.bool() & ~kept.bool())[:, 2]
        assert int(torch.count_nonzero(gradient[rejected])) == 0
        assert float(loss.sums[SUMS.index("correction")]) == float(kept.sum())
        logprobs = batch.logprobs.clone().requires_grad_()
        expected, _ = verl.compute_policy_loss_vanilla(
            batch.old,
            logprobs,
            batch.advantages,
            kept.float(),
            "token-mean",
            actor(clip_ratio_low=0.2, clip_ratio_high=0.28),
        )
        share = float(kept.sum() / batch.mask.sum())
        torch.testing.assert_close(loss.loss.detach(), expected.detach() * share)

    def test_the_sequence_mask_is_its_weight_where_it_keeps_and_zero_where_it_rejects(self, verl: Any) -> None:
        """Again over all tokens: for the same denominators verl's verdict is put into its weights. Its bounds are those
        of the inverse ratio, exp(mu - o)."""
        from verl.trainer.ppo.rollout_corr_helper import (
            compute_rollout_correction_weights,
            compute_rollout_rejection_mask,
        )

        batch = Tensors()
        delta = batch.old - batch.recorded
        weights, _ = compute_rollout_correction_weights(
            delta, batch.mask, rollout_is="sequence", rollout_is_threshold=1000.0
        )
        kept, _ = compute_rollout_rejection_mask(
            delta, batch.mask, rollout_rs="seq_sum_k1", rollout_rs_threshold=f"{1 / 1.1}_1000000"
        )
        assert 0 < int(kept.sum()) < int(batch.mask.sum())
        logprobs = batch.logprobs.clone().requires_grad_()
        expected, _ = verl.compute_policy_loss_vanilla(
            batch.old,
            logprobs,
            batch.advantages,
            batch.mask,
            "token-mean",
            actor(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0),
            weights * kept,
        )
        expected.backward()
        loss, gradient = batch.ours(config(correction={"type": "mask_sequence", "limit": 1.1}))
        torch.testing.assert_close(loss.loss.detach(), expected.detach())
        torch.testing.assert_close(gradient, logprobs.grad)

    @pytest.mark.parametrize("aggregation", [("token_mean", "token-mean"), ("seq_mean_token_mean",) * 2])
    def test_half_squares_as_a_penalty_and_a_bonus_for_entropy(self, verl: Any, aggregation: tuple[str, str]) -> None:
        ours, theirs = aggregation[0], aggregation[1].replace("_", "-")
        batch = Tensors()
        logprobs, entropy = batch.logprobs.clone().requires_grad_(), batch.values.abs().requires_grad_()
        expected, _ = verl.compute_policy_loss_vanilla(
            batch.old,
            logprobs,
            batch.advantages,
            batch.mask,
            theirs,
            actor(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0),
        )
        penalty = verl.agg_loss(verl.kl_penalty(logprobs, batch.reference, "k2"), batch.mask, theirs)
        expected = expected + 0.1 * penalty - 0.01 * verl.agg_loss(entropy, batch.mask, theirs)
        expected.backward()
        algorithm = config(
            kl={"coefficient": 0.1, "estimator": "k2"}, entropy_coefficient=0.01, aggregation={"type": ours}
        )
        own = batch.values.abs().requires_grad_()
        loss, gradient = batch.ours(algorithm, reference=batch.flat(batch.reference), entropy=batch.flat(own))
        torch.testing.assert_close(loss.loss.detach(), expected.detach())
        torch.testing.assert_close(gradient, logprobs.grad)
        torch.testing.assert_close(own.grad, entropy.grad)


def trl_loss(
    trl: Any, batch: Tensors, loss_type: str, *, level: str = "token", beta: float = 0.0, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's loss and gradient: its method, with what it reads of a trainer and nothing else."""
    logprobs = batch.logprobs.clone().requires_grad_()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=True, delta=None, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=TOKENS,
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=False,
            gather=lambda value: value,
            reduce=lambda value, reduction: value,
        ),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": torch.zeros(ROWS, TOKENS, dtype=torch.long),
        "completion_mask": torch.ones(ROWS, TOKENS, dtype=torch.long),
        "tool_mask": batch.mask.long(),
        "advantages": batch.advantages[:, 0],
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference,
        "num_items_in_batch": batch.mask.sum(),
    }
    loss = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert logprobs.grad is not None
    return loss.detach(), logprobs.grad


class TestTrl:
    @pytest.mark.parametrize(
        ("loss_type", "ours"),
        [("dapo", "token_mean"), ("bnpo", "token_mean"), ("grpo", "seq_mean_token_mean"), ("dr_grpo", "dr_grpo")],
    )
    def test_clipped_losses_in_every_aggregation(self, trl: Any, loss_type: str, ours: str) -> None:
        batch = Tensors(1)
        expected, gradient = trl_loss(trl, batch, loss_type, low=0.2, high=0.28)
        algorithm = config(loss={"type": "ppo", "dual_clip": "none"}, aggregation={"type": ours})
        loss, own = batch.ours(algorithm)
        torch.testing.assert_close(loss.loss.detach(), expected)
        torch.testing.assert_close(own, gradient)

    def test_sequence_ratios(self, trl: Any) -> None:
        batch = Tensors(1)
        expected, gradient = trl_loss(trl, batch, "grpo", level="sequence", low=0.05, high=0.05)
        loss, own = batch.ours(config(loss={"type": "gspo", "clip_low": 0.05, "clip_high": 0.05}))
        torch.testing.assert_close(loss.loss.detach(), expected)
        torch.testing.assert_close(own, gradient)

    def test_capped_ratios(self, trl: Any) -> None:
        batch = Tensors(1)
        expected, gradient = trl_loss(trl, batch, "cispo", low=0.2, high=1.2)
        loss, own = batch.ours(config(loss={"type": "cispo", "cap": 1.2}))
        torch.testing.assert_close(loss.loss.detach(), expected)
        torch.testing.assert_close(own, gradient)

    def test_a_penalty_in_the_loss(self, trl: Any) -> None:
        batch = Tensors(1)
        expected, gradient = trl_loss(trl, batch, "dapo", beta=0.1, low=0.2, high=0.28)
        algorithm = config(loss={"type": "ppo", "dual_clip": "none"}, kl={"coefficient": 0.1, "estimator": "k3"})
        loss, own = batch.ours(algorithm, reference=batch.flat(batch.reference))
        torch.testing.assert_close(loss.loss.detach(), expected)
        torch.testing.assert_close(own, gradient)

    def test_a_soft_limit_of_length(self, trl: Any) -> None:
        from trl.rewards import get_soft_overlong_punishment

        from agentfly_lib.rewards.overlong import overlong

        lengths = [1, 79, 80, 81, 90, 100, 101, 300]
        theirs = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
        ours: Any = overlong(limit=100, buffer=20).function
        found = [ours(SimpleNamespace(num_sampled=length)) for length in lengths]
        assert found == pytest.approx(theirs([[0] * length for length in lengths]))
