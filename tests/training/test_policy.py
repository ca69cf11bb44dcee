"""Log-probs of trained tokens, against the model's own full logits."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402

from agentfly_lib.configs import AlgorithmConfig, KlConfig  # noqa: E402
from agentfly_lib.errors import ModelError  # noqa: E402
from agentfly_lib.training.losses import policy_loss  # noqa: E402
from agentfly_lib.training.packing import to_batch  # noqa: E402
from agentfly_lib.training.policy import PolicyInputs, PolicyModule, load_policy, token_logprobs  # noqa: E402
from agentfly_lib.types import TrainingSample  # noqa: E402

CPU = torch.device("cpu")
ALGORITHM = AlgorithmConfig(kl=KlConfig(coefficient=0.05))


def policy(path: Path, chunk: int = 4096) -> PolicyModule:
    return PolicyModule(load_policy(path, torch.float32), logit_chunk_tokens=chunk)


def full_logits(path: Path, sample: TrainingSample) -> torch.Tensor:
    """By transformers' own eager attention, one sequence alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.from_numpy(sample.token_ids).long()[None]).logits[0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_log_probs_equal_those_of_each_sequence_alone(
    tiny_model: Path, factories: ModuleType, temperature: float
) -> None:
    samples = factories.samples(0, [9, 30, 14])
    logprobs, entropy = policy(tiny_model)(PolicyInputs(to_batch(samples), CPU), temperature)
    expected, expected_entropy = [], []
    for sample in samples:
        distribution = torch.log_softmax(full_logits(tiny_model, sample) / temperature, -1)
        for position in sample.loss_mask.nonzero()[0].tolist():
            row = distribution[position - 1]
            expected.append(row[int(sample.token_ids[position])])
            expected_entropy.append(-(row.exp() * row).sum())
    torch.testing.assert_close(logprobs, torch.stack(expected), rtol=0, atol=2e-6)
    torch.testing.assert_close(entropy, torch.stack(expected_entropy), rtol=0, atol=2e-6)
    assert logprobs.requires_grad
    assert not entropy.requires_grad


@pytest.mark.parametrize("tied", [True, False])
def test_chunks_of_the_output_head_change_nothing(tmp_path: Path, factories: ModuleType, tied: bool) -> None:
    path = factories.write_tiny_model(tmp_path, tied=tied)
    inputs = PolicyInputs(to_batch(factories.samples(1, [20, 25])), CPU)
    whole, parts = policy(path), policy(path, chunk=4)
    results = []
    for module in (whole, parts):
        logprobs, entropy = module(inputs)
        logprobs.square().sum().backward()
        results.append((logprobs, entropy, *(parameter.grad for parameter in module.parameters())))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def gradient(path: Path, rows: list[list[TrainingSample]]) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradient of the same samples, packed into the given rows."""
    module = policy(path)
    denominator = sum(sample.num_loss_tokens for row in rows for sample in row)
    total = 0.0
    for row in rows:
        inputs = PolicyInputs(to_batch(row), CPU)
        logprobs, _ = module(inputs)
        loss = policy_loss(
            logprobs,
            old=logprobs.detach() - 0.1,
            recorded=inputs.recorded,
            advantages=inputs.advantages,
            reference=logprobs.detach() + 0.2,
            denominator=denominator,
            algorithm=ALGORITHM,
        )
        loss.loss.backward()
        total += float(loss.loss.detach())
    return total, [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def test_a_packed_batch_has_the_loss_and_gradient_of_one_sequence_at_a_time(
    tiny_model: Path, factories: ModuleType
) -> None:
    samples = factories.samples(2, [9, 30, 14, 22, 8])
    alone_loss, alone = gradient(tiny_model, [[sample] for sample in samples])
    for rows in (
        [samples],
        [samples[:2], samples[2:]],
        [[samples[4], samples[1], samples[0]], [samples[3], samples[2]]],
    ):
        loss, packed = gradient(tiny_model, rows)
        assert loss == pytest.approx(alone_loss, abs=1e-6)
        for one, other in zip(alone, packed, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_nothing_about_a_masked_token_but_its_id_has_any_influence(tiny_model: Path, factories: ModuleType) -> None:
    samples = factories.samples(3, [16, 21])
    poisoned = []
    for sample in samples:
        poisoned.append(
            TrainingSample(
                trajectory_id=sample.trajectory_id,
                token_ids=sample.token_ids,
                loss_mask=sample.loss_mask,
                rollout_logprobs=sample.rollout_logprobs.copy(),
                advantages=sample.advantages.copy(),
            )
        )
        poisoned[-1].rollout_logprobs[~sample.loss_mask] = -123.0
        poisoned[-1].advantages[~sample.loss_mask] = 1e6
    loss, clean = gradient(tiny_model, [samples])
    other_loss, other = gradient(tiny_model, [poisoned])
    assert loss == other_loss
    assert all(torch.equal(one, two) for one, two in zip(clean, other, strict=True))


def test_tokens_behind_the_last_trained_one_have_no_influence(tiny_model: Path, factories: ModuleType) -> None:
    (sample,) = factories.samples(4, [20])
    mask = sample.loss_mask.copy()
    mask[12:] = False
    ids = sample.token_ids.copy()
    ids[12:] = 5
    cut, changed = (
        TrainingSample(
            trajectory_id="t",
            token_ids=tokens,
            loss_mask=mask,
            rollout_logprobs=sample.rollout_logprobs,
            advantages=sample.advantages,
        )
        for tokens in (sample.token_ids, ids)
    )
    for one, other in zip(gradient(tiny_model, [[cut]])[1], gradient(tiny_model, [[changed]])[1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_an_empty_row_still_reaches_every_parameter_with_zero(tiny_model: Path) -> None:
    from agentfly_lib.training.losses import zero_loss

    module = policy(tiny_model)
    logprobs, _ = module(PolicyInputs(to_batch([]), CPU))
    zero_loss(logprobs).loss.backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert torch.count_nonzero(parameter.grad) == 0


def test_log_probs_of_bfloat16_logits_are_computed_in_float32() -> None:
    logits = torch.randn(3, 50).bfloat16()
    logprobs, _ = token_logprobs(logits, torch.tensor([1, 2, 3]))
    expected = torch.log_softmax(logits.double(), -1)[torch.arange(3), torch.tensor([1, 2, 3])]
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-5)


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_policy(tmp_path, torch.float32)


def test_code_in_a_model_directory_is_neither_run_nor_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_policy(tmp_path, torch.float32)
    assert not (tmp_path / "ran").exists()
