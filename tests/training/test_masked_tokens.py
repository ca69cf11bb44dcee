"""Whatever the batch: tokens with mask 0 have no influence on loss or gradient, down to the last bit.

The policy is a table of logits, one row per position and so independent of the ids: what is left is everything between
a trajectory and its gradient. A real policy reads masked tokens as context, which is what they are there for.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agentfly_lib.configs import AlgorithmConfig  # noqa: E402
from agentfly_lib.training.losses import Trajectories, policy_loss, zero_loss  # noqa: E402
from agentfly_lib.training.packing import to_batch  # noqa: E402
from agentfly_lib.training.policy import PolicyInputs, PolicyModule  # noqa: E402
from agentfly_lib.types import TrainingSample  # noqa: E402

VOCABULARY = 7
ALGORITHMS = [
    {},
    {"loss": {"type": "gspo"}},
    {"loss": {"type": "cispo"}, "correction": {"type": "mask_sequence"}},
    {"correction": {"type": "tis_sequence"}, "kl": {"coefficient": 0.1}, "entropy_coefficient": 0.01},
    {"correction": {"type": "mask_geometric", "low": 0.1, "high": 10.0}, "kl": {"coefficient": 0.1, "estimator": "k2"}},
    {"advantage": {"type": "accepted"}},
]


class Table(torch.nn.Module):
    """Logits that depend on nothing but the position."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.randn(tokens, VOCABULARY, generator=torch.Generator().manual_seed(1)))
        self.config = SimpleNamespace()

    def get_output_embeddings(self) -> None:
        """There is no linear layer behind the logits."""

    def forward(self, *, logits_to_keep: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.logits[logits_to_keep][None])


def loss_and_gradient(samples: list[TrainingSample], algorithm: AlgorithmConfig) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = PolicyInputs(to_batch(samples), torch.device("cpu"))
    table = Table(len(inputs.token_ids[0]))
    policy = PolicyModule(
        table,  # type: ignore[arg-type]
        logit_chunk_tokens=4096,
        entropy_gradient=True,
    )
    logprobs, entropy, values = policy(inputs)
    if not inputs.num_loss_tokens:
        zero_loss(logprobs, values).loss.backward()
        return torch.zeros(()), table.logits.grad  # type: ignore[return-value]
    counts = [sample.num_loss_tokens for sample in samples]
    loss = policy_loss(
        logprobs,
        old=logprobs.detach() - 0.3,
        recorded=inputs.recorded,
        advantages=inputs.advantages,
        shares=torch.full_like(inputs.advantages, 1 / inputs.num_loss_tokens),
        algorithm=algorithm,
        trajectories=Trajectories(
            index=torch.from_numpy(np.repeat(np.arange(len(samples)), counts)),
            lengths=torch.tensor(counts, dtype=torch.float32),
        ),
        reference=logprobs.detach() + 0.2,
        entropy=entropy,
    ).loss
    loss.backward()
    return loss.detach(), table.logits.grad  # type: ignore[return-value]


@st.composite
def rows(draw: st.DrawFn) -> list[TrainingSample]:
    made = []
    for number in range(draw(st.integers(1, 3))):
        mask = np.array([False, *draw(st.lists(st.booleans(), min_size=1, max_size=8))])
        made.append(sample(draw, mask, f"t{number}"))
    return made


def sample(draw: st.DrawFn, mask: np.ndarray, name: str) -> TrainingSample:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return TrainingSample(
        trajectory_id=name,
        token_ids=rng.integers(0, VOCABULARY, len(mask)).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=rng.normal(-2, 0.5, len(mask)).astype(np.float32),
        advantages=rng.normal(size=len(mask)).astype(np.float32),
    )


@given(rows(), st.sampled_from(ALGORITHMS), st.integers(0, 2**32 - 1), st.sampled_from([np.nan, np.inf, 1e30, 3.0]))
@settings(max_examples=60, deadline=None)
def test_masked_tokens_change_not_a_bit(
    samples: list[TrainingSample], values: dict[str, Any], seed: int, poison: float
) -> None:
    algorithm = AlgorithmConfig.model_validate(values)
    rng = np.random.default_rng(seed)
    others = [
        dataclasses.replace(
            each,
            token_ids=np.where(each.loss_mask, each.token_ids, rng.integers(0, VOCABULARY, len(each))).astype(np.int32),
            rollout_logprobs=np.where(each.loss_mask, each.rollout_logprobs, np.float32(poison)),
            advantages=np.where(each.loss_mask, each.advantages, np.float32(poison)),
        )
        for each in samples
    ]
    loss, gradient = loss_and_gradient(samples, algorithm)
    other_loss, other_gradient = loss_and_gradient(others, algorithm)
    assert torch.equal(loss, other_loss)
    assert torch.equal(gradient, other_gradient)
    assert bool(torch.isfinite(gradient).all())
    # A position has a gradient exactly if it predicts a trained token of its own sample.
    starts = np.cumsum([0, *(len(each) for each in samples)])
    predicts = [*np.concatenate([each.loss_mask for each in samples])[1:].tolist(), False]
    idle = [place for place in range(starts[-1]) if not predicts[place]]
    assert torch.count_nonzero(gradient[idle]) == 0


def test_a_row_in_which_everything_is_masked_gives_zero_with_a_graph() -> None:
    nothing = TrainingSample(
        trajectory_id="t",
        token_ids=np.arange(4, dtype=np.int32),
        loss_mask=np.zeros(4, np.bool_),
        rollout_logprobs=np.full(4, np.nan, np.float32),
        advantages=np.full(4, np.nan, np.float32),
    )
    loss, gradient = loss_and_gradient([nothing], AlgorithmConfig())
    assert float(loss) == 0.0
    assert gradient is not None
    assert torch.count_nonzero(gradient) == 0
