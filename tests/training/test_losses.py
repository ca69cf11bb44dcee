"""The objective, by hand and by properties."""

from __future__ import annotations

import math
from typing import get_args

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402

from agentfly_lib.configs import (  # noqa: E402
    AlgorithmConfig,
    ClipConfig,
    KlConfig,
    NoCorrectionConfig,
    TisTokenConfig,
)
from agentfly_lib.training.losses import (  # noqa: E402
    AGGREGATIONS,
    KL_ESTIMATORS,
    MAXIMA,
    SUMS,
    PolicyLoss,
    policy_loss,
    zero_loss,
)
from agentfly_lib.training.policy import token_logprobs  # noqa: E402

PLAIN = AlgorithmConfig(correction=NoCorrectionConfig())


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def loss_of(
    ratios: list[float], advantages: list[float], algorithm: AlgorithmConfig = PLAIN, **others: torch.Tensor
) -> tuple[PolicyLoss, torch.Tensor]:
    """Tokens whose ratio to the old policy is as given; the denominator is 1."""
    old = torch.full((len(ratios),), -2.0)
    logprobs = (old + tensor(*ratios).log()).requires_grad_()
    recorded = others.pop("recorded", old)
    result = policy_loss(
        logprobs,
        old=old,
        recorded=recorded,
        advantages=tensor(*advantages),
        denominator=1,
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
        denominator=8,
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
    result, _ = loss_of([5.0], [-2.0], PLAIN.model_copy(update={"clip": ClipConfig(dual="none")}))
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
        logprobs, old=old, recorded=old, advantages=tensor(-1, -1), denominator=2, algorithm=AlgorithmConfig()
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


def test_every_name_that_the_config_takes_is_read_and_computed() -> None:
    aggregation = AlgorithmConfig.model_fields["aggregation"].annotation
    estimator = KlConfig.model_fields["estimator"].annotation
    assert set(get_args(aggregation)) == AGGREGATIONS.keys()
    assert set(get_args(estimator)) == KL_ESTIMATORS.keys()
    for unknown in ({"aggregation": "other"}, {"kl": KlConfig.model_construct(coefficient=0.1, estimator="other")}):
        with pytest.raises(KeyError, match="other"):
            loss_of([1.0], [1.0], PLAIN.model_copy(update=unknown), reference=tensor(-2.0))
