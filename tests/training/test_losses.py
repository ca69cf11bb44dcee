"""The objective, by hand and by properties."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402

from agentfly_lib.configs import (  # noqa: E402
    AlgorithmConfig,
    CispoLossConfig,
    GspoLossConfig,
    KlConfig,
    MaskGeometricConfig,
    MaskSequenceConfig,
    NllLossConfig,
    NoCorrectionConfig,
    PpoLossConfig,
    SequenceMeanConfig,
    TisSequenceConfig,
    TisTokenConfig,
)
from agentfly_lib.training.advantages import ADVANTAGES  # noqa: E402
from agentfly_lib.training.aggregation import AGGREGATIONS  # noqa: E402
from agentfly_lib.training.losses import (  # noqa: E402
    CORRECTIONS,
    KL_ESTIMATORS,
    MAXIMA,
    POLICY_LOSSES,
    SUMS,
    PolicyLoss,
    Trajectories,
    policy_loss,
    zero_loss,
)
from agentfly_lib.training.policy import token_logprobs  # noqa: E402

PLAIN = AlgorithmConfig(correction=NoCorrectionConfig())


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def loss_of(
    ratios: list[float], advantages: list[float], algorithm: AlgorithmConfig = PLAIN, **others: Any
) -> tuple[PolicyLoss, torch.Tensor]:
    """Tokens whose ratio to the old policy is as given; every token's share is 1."""
    old = torch.full((len(ratios),), -2.0)
    logprobs = (old + tensor(*ratios).log()).requires_grad_()
    recorded = others.pop("recorded", old)
    result = policy_loss(
        logprobs,
        old=old,
        recorded=recorded,
        advantages=tensor(*advantages),
        shares=others.pop("shares", torch.ones(len(ratios))),
        algorithm=algorithm,
        **others,
    )
    result.loss.backward()
    assert logprobs.grad is not None
    return result, logprobs.grad


def value(result: PolicyLoss, name: str) -> float:
    return float(result.sums[SUMS.index(name)])


def test_a_step_of_grpo_by_hand() -> None:
    # A group with rewards 1, 0, 0, 1 (A = +-0.8660239), two trained tokens each, on policy: every ratio is 1.
    # loss = sum(-A) / 8 = 0; d loss / d l = -A / 8 = -+0.1082530
    advantages = tensor(*[sign * 0.8660239 for sign in (1, 1, -1, -1, -1, -1, 1, 1)])
    logprobs = torch.full((8,), -1.5, requires_grad=True)
    result = policy_loss(
        logprobs,
        old=logprobs.detach(),
        recorded=logprobs.detach(),
        advantages=advantages,
        shares=torch.full((8,), 1 / 8),
        algorithm=AlgorithmConfig(),
    )
    result.loss.backward()
    assert result.loss.item() == pytest.approx(0.0, abs=1e-7)
    torch.testing.assert_close(logprobs.grad, -advantages / 8)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside the range: -A r, whose derivative by l is -A r
        (1.4, 2.0, -2.56, 0.0),  # above 1 + 0.28 with A > 0: clipped at 1.28, no gradient
        (0.5, 2.0, -1.0, -1.0),  # below 1 - 0.2 with A > 0: max(-1.0, -1.6) is the unclipped one
        (0.5, -2.0, 1.6, 0.0),  # below with A < 0: max(1.0, 1.6), clipped at 0.8
        (1.4, -2.0, 2.8, 2.8),  # above with A < 0: max(2.8, 2.56), unclipped
        (5.0, -2.0, 6.0, 0.0),  # far above with A < 0: dual clip min(10, 3 * 2)
    ],
)
def test_clipping_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    result, grad = loss_of([ratio], [advantage])
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert float(grad) == pytest.approx(gradient, rel=1e-5)


def test_without_dual_clip_a_bad_token_is_not_bounded() -> None:
    result, _ = loss_of([5.0], [-2.0], PLAIN.model_copy(update={"loss": PpoLossConfig(dual_clip="none")}))
    assert result.loss.item() == pytest.approx(10.0, rel=1e-5)


def test_truncated_importance_weights_by_hand() -> None:
    # old is -2. Recorded -2.5: exp(0.5) = 1.6487. Recorded -4: exp(2) = 7.389, capped at 2. NaN: weight 1, counted.
    algorithm = AlgorithmConfig(correction=TisTokenConfig(cap=2.0))
    result, grad = loss_of([1.0] * 3, [1.0] * 3, algorithm, recorded=tensor(-2.5, -4.0, math.nan))
    assert result.loss.item() == pytest.approx(-(1.6487213 + 2 + 1), rel=1e-6)
    torch.testing.assert_close(grad, -tensor(1.6487213, 2, 1))
    assert value(result, "missing_logprobs") == 1
    assert value(result, "correction_capped") == 1
    assert value(result, "mismatch_k1") == pytest.approx(-2.5)
    assert float(result.maxima[MAXIMA.index("mismatch")]) == pytest.approx(2.0)


def test_the_mismatch_is_reported_even_if_it_is_not_corrected() -> None:
    result, _ = loss_of([1.0], [1.0], PLAIN, recorded=tensor(-2.5))
    assert result.loss.item() == pytest.approx(-1.0)
    # exp(0.5) - 1 - 0.5
    assert value(result, "mismatch_k3") == pytest.approx(0.1487213, rel=1e-5)


def test_kl_penalty_by_hand_and_its_gradient_is_that_of_the_divergence() -> None:
    # x = f - l = 0.3: k3 = e^0.3 - 1.3 = 0.0498588; on policy the gradient of r k3 by l is k3 - (e^x - 1) = -x.
    algorithm = PLAIN.model_copy(update={"kl": KlConfig(coefficient=0.1)})
    result, grad = loss_of([1.0], [0.0], algorithm, reference=tensor(-1.7))
    assert result.loss.item() == pytest.approx(0.1 * 0.0498588, rel=1e-4)
    assert float(grad) == pytest.approx(-0.1 * 0.3, rel=1e-4)


def test_kl_is_clamped_where_the_reference_is_far_away() -> None:
    algorithm = PLAIN.model_copy(update={"kl": KlConfig(coefficient=1.0)})
    result, _ = loss_of([1.0], [0.0], algorithm, reference=tensor(100.0))
    assert result.loss.item() == pytest.approx(math.exp(20) - 21, rel=1e-5)


def test_extreme_ratios_stay_finite() -> None:
    old = tensor(-200.0, 0.0)
    logprobs = tensor(0.0, -200.0).requires_grad_()
    result = policy_loss(
        logprobs, old=old, recorded=old, advantages=tensor(-1, -1), shares=tensor(0.5, 0.5), algorithm=AlgorithmConfig()
    )
    result.loss.backward()
    assert math.isfinite(result.loss.item())
    assert logprobs.grad is not None
    assert bool(torch.isfinite(logprobs.grad).all())


def test_clip_fractions_by_hand() -> None:
    result, _ = loss_of([1.4, 1.4, 0.5, 0.5, 5.0, 1.0], [1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    names = ("tokens", "clipped_high", "clipped_low", "clipped_dual", "ratio")
    assert [value(result, name) for name in names] == pytest.approx([6, 1, 1, 1, 9.8])


def test_all_masked_gives_zero_with_a_graph() -> None:
    weights = torch.randn(4, 5, requires_grad=True)
    logprobs, _ = token_logprobs(weights, torch.zeros(4, dtype=torch.long))
    result = zero_loss(logprobs)
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert weights.grad is not None
    assert torch.count_nonzero(weights.grad) == 0
    assert result.sums.tolist() == [0.0] * len(SUMS)


def test_cispo_by_hand() -> None:
    # Every l is -2 + ln r. r = 6 is capped at 5: -5 * 2 * (-2 + 1.7917595) = 2.0824054, gradient -10; r = 0.5:
    # -0.5 * 2 * (-2 - 0.6931472) = 2.6931472, gradient -1. Nothing is clipped to a gradient of 0.
    algorithm = AlgorithmConfig(loss=CispoLossConfig(), correction=NoCorrectionConfig())
    result, grad = loss_of([6.0, 0.5], [2.0, 2.0], algorithm)
    assert result.loss.item() == pytest.approx(2.0824054 + 2.6931472, rel=1e-5)
    torch.testing.assert_close(grad, tensor(-10, -1))
    assert value(result, "clipped_high") == 1


def test_maximum_likelihood_by_hand() -> None:
    # -A l with l = -2: 2, and 0 for what is not accepted.
    algorithm = AlgorithmConfig.model_validate({"advantage": {"type": "accepted"}})
    result, grad = loss_of([1.0, 1.0], [1.0, 0.0], algorithm)
    assert isinstance(algorithm.loss, NllLossConfig)
    assert result.loss.item() == pytest.approx(2.0)
    torch.testing.assert_close(grad, tensor(-1, 0))


GSPO = AlgorithmConfig(loss=GspoLossConfig(), aggregation=SequenceMeanConfig(), correction=NoCorrectionConfig())


@pytest.mark.parametrize(
    ("advantage", "loss", "gradient"),
    [
        # Ratios 1.1 and 0.9: mean log-ratio (0.0953102 - 0.1053605) / 2 = -0.0050252, s = 0.9949874. With shares of
        # 1 / T = 1 / 2 the loss is that of the trajectory, and each token has half of the gradient -A s.
        (1.0, -0.9949874, -0.4974937),  # below 1 - 3e-4 with A > 0: the unclipped one is the larger
        (-1.0, 0.9997, 0.0),  # below with A < 0: clipped at 1 - 3e-4
    ],
)
def test_gspo_by_hand(advantage: float, loss: float, gradient: float) -> None:
    result, grad = loss_of([1.1, 0.9], [advantage, advantage], GSPO, shares=tensor(0.5, 0.5))
    assert result.loss.item() == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(grad, tensor(gradient, gradient))


def test_gspo_has_the_gradient_of_the_trajectorys_ratio() -> None:
    old = torch.tensor([-1.0, -2.0, -3.0])
    logprobs = torch.tensor([-1.0002, -1.9999, -3.0001], requires_grad=True)
    (-2.0 * (logprobs - old).mean().exp()).backward()
    expected, logprobs.grad = logprobs.grad, None
    policy_loss(
        logprobs, old=old, recorded=old, advantages=tensor(2, 2, 2), shares=torch.full((3,), 1 / 3), algorithm=GSPO
    ).loss.backward()
    torch.testing.assert_close(logprobs.grad, expected)


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        # Trajectories of two, one and two tokens, with o - mu of (0.5, 0.3), (-1), (1.5, -0.3).
        # Sums 0.8, -1, 1.2; exp: 2.2255409, 0.3678794, 3.3201169. Means 0.4, -1, 0.6; exp: 1.49, 0.37, 1.82.
        (TisSequenceConfig(), [2, 2, 0.3678794, 2, 2]),
        (MaskSequenceConfig(), [2.2255409, 2.2255409, 0.3678794, 0, 0]),
        (MaskGeometricConfig(low=0.3, high=1.5), [1, 1, 1, 0, 0]),
        (MaskGeometricConfig(), [0, 0, 0, 0, 0]),
        # exp(0.5) = 1.6487213, exp(0.3) = 1.3498588, exp(-1), exp(1.5) capped, exp(-0.3) = 0.7408182
        (TisTokenConfig(), [1.6487213, 1.3498588, 0.3678794, 2, 0.7408182]),
        (NoCorrectionConfig(), [1, 1, 1, 1, 1]),
    ],
    ids=lambda value: value.type if hasattr(value, "type") else "",
)
def test_corrections_by_hand(correction: Any, weights: list[float]) -> None:
    trajectories = Trajectories(index=torch.tensor([0, 0, 1, 2, 2]), lengths=tensor(2, 1, 2))
    recorded = -2.0 - tensor(0.5, 0.3, -1.0, 1.5, -0.3)
    algorithm = AlgorithmConfig(correction=correction)
    result, grad = loss_of([1.0] * 5, [1.0] * 5, algorithm, recorded=recorded, trajectories=trajectories)
    torch.testing.assert_close(grad, -tensor(*weights))
    # What is reported does not depend on the correction: KL(mu || o) = mean of -delta, and the weights' spread.
    assert value(result, "mismatch_k1") == pytest.approx(-(0.5 + 0.3 - 1.0 + 1.5 - 0.3), abs=1e-5)
    assert float(result.maxima[MAXIMA.index("mismatch")]) == pytest.approx(1.5)
    exact = [math.exp(delta) for delta in (0.5, 0.3, -1.0, 1.5, -0.3)]
    assert value(result, "weight") == pytest.approx(sum(exact), rel=1e-5)
    assert value(result, "weight_squared") == pytest.approx(sum(weight**2 for weight in exact), rel=1e-5)


def test_what_lies_in_another_micro_batch_counts_by_its_sums() -> None:
    # One trajectory of three tokens, as a whole and as one token here and two elsewhere.
    old, recorded = tensor(-1, -2, -3), tensor(-1.1, -2.2, -2.9)
    logprobs = old + tensor(0.0001, -0.0002, 0.0004)
    for correction in (TisSequenceConfig(), MaskSequenceConfig(), MaskGeometricConfig(low=0.5, high=2)):
        algorithm = GSPO.model_copy(update={"correction": correction})
        whole = Trajectories.single(3)
        sums = {"log_ratio_sums": whole.sums(logprobs - old), "delta_sums": whole.sums(old - recorded)}
        together = policy_loss(
            logprobs,
            old=old,
            recorded=recorded,
            advantages=tensor(1, 1, 1),
            shares=tensor(1, 1, 1),
            algorithm=algorithm,
        ).loss
        split = [
            policy_loss(
                logprobs[part],
                old=old[part],
                recorded=recorded[part],
                advantages=torch.ones(len(old[part])),
                shares=torch.ones(len(old[part])),
                algorithm=algorithm,
                trajectories=Trajectories(
                    index=torch.zeros(len(old[part]), dtype=torch.long), lengths=tensor(3), **sums
                ),
            ).loss
            for part in (slice(0, 1), slice(1, 3))
        ]
        torch.testing.assert_close(together, split[0] + split[1])


@pytest.mark.parametrize(
    ("estimator", "loss", "gradient"),
    # x = f - l = 0.3: k2 = 0.045 with gradient -x; k3 = e^0.3 - 1.3 = 0.0498588, times r with gradient -x on policy.
    [("k2", 0.045, -0.3), ("k3", 0.0498588, -0.3)],
)
def test_kl_losses_by_hand(estimator: Any, loss: float, gradient: float) -> None:
    algorithm = PLAIN.model_copy(update={"kl": KlConfig(coefficient=0.1, estimator=estimator)})
    result, grad = loss_of([1.0], [0.0], algorithm, reference=tensor(-1.7))
    assert result.loss.item() == pytest.approx(0.1 * loss, rel=1e-4)
    assert float(grad) == pytest.approx(0.1 * gradient, rel=1e-4)
    # Off policy only k3 is weighted: r = 1.5, l = -2 + ln 1.5, x = 0.3 - 0.4054651 = -0.1054651.
    off, _ = loss_of([1.5], [0.0], algorithm, reference=tensor(-1.7))
    expected = 0.5 * 0.1054651**2 if estimator == "k2" else 1.5 * (math.exp(-0.1054651) - 1 + 0.1054651)
    assert off.loss.item() == pytest.approx(0.1 * expected, rel=1e-3)


def test_estimators_of_the_divergence_by_hand() -> None:
    values = [float(KL_ESTIMATORS[name](tensor(-2.0), tensor(-1.7))) for name in ("k1", "k2", "k3")]
    assert values == pytest.approx([-0.3, 0.045, 0.0498588], rel=1e-4)


def test_a_penalty_in_the_reward_is_not_in_the_loss() -> None:
    algorithm = PLAIN.model_copy(update={"kl": KlConfig(coefficient=0.1, estimator="k1", place="reward")})
    result, grad = loss_of([1.0], [0.0], algorithm, reference=tensor(-1.7))
    assert (result.loss.item(), float(grad)) == (0.0, 0.0)
    assert value(result, "kl_reference") == pytest.approx(-0.3, rel=1e-5)


def test_the_entropy_bonus_by_hand() -> None:
    algorithm = PLAIN.model_copy(update={"entropy_coefficient": 0.01})
    entropy = tensor(0.5, 0.7).requires_grad_()
    result, _ = loss_of([1.0, 1.0], [0.0, 0.0], algorithm, entropy=entropy)
    assert result.loss.item() == pytest.approx(-0.012)
    torch.testing.assert_close(entropy.grad, tensor(-0.01, -0.01))


def test_the_value_loss_by_hand() -> None:
    # Returns 1, 1, 1; at the start 0, 0, 0.9; now 0.1, 0.5, 0.9 with a clip of 0.2: near = 0.1, 0.2, 0.9.
    # max((V - G)^2, (near - G)^2) = 0.81, 0.64 (the clipped one: no gradient), 0.01; times 0.5 / 2.
    algorithm = AlgorithmConfig.model_validate({"advantage": {"type": "gae"}, "correction": {"type": "none"}})
    values = tensor(0.1, 0.5, 0.9).requires_grad_()
    result, _ = loss_of(
        [1.0] * 3, [0.0] * 3, algorithm, values=values, old_values=tensor(0, 0, 0.9), returns=tensor(1, 1, 1)
    )
    assert result.loss.item() == pytest.approx(0.25 * (0.81 + 0.64 + 0.01))
    torch.testing.assert_close(values.grad, tensor(-0.45, 0, -0.05))


def types_of(field: str) -> set[str]:
    """The values that `type` may have in a section of the algorithm."""
    variants = get_args(AlgorithmConfig.model_fields[field].annotation)
    return {variant.model_fields["type"].default for variant in variants}


def test_every_name_that_the_config_takes_is_computed() -> None:
    assert types_of("loss") == POLICY_LOSSES.keys()
    assert types_of("correction") == CORRECTIONS.keys()
    assert types_of("aggregation") == AGGREGATIONS.keys()
    assert types_of("advantage") == ADVANTAGES.keys()
    assert set(get_args(KlConfig.model_fields["estimator"].annotation)) == KL_ESTIMATORS.keys()
