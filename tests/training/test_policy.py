"""Log-probs of trained tokens, against the model's own full logits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

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
    logprobs, entropy, _ = policy(tiny_model)(PolicyInputs(to_batch(samples), CPU), temperature)
    expected, expected_entropy = [], []
    for sample in samples:
        distribution = torch.log_softmax(full_logits(tiny_model, sample) / temperature, -1)
        for position in sample.loss_mask.nonzero()[0].tolist():
            row = distribution[position - 1]
            expected.append(row[int(sample.token_ids[position])])
            expected_entropy.append(-(row.exp() * row).sum())
    torch.testing.assert_close(logprobs, torch.stack(expected), rtol=0, atol=5e-6)
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
        logprobs, entropy, _ = module(inputs)
        logprobs.square().sum().backward()
        results.append((logprobs, entropy, *(parameter.grad for parameter in module.parameters())))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def gradient(path: Path, rows: list[list[TrainingSample]]) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradient of the same samples, packed into the given rows."""
    module = policy(path)
    total = backward(module, rows)
    return total, [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def backward(module: PolicyModule, rows: list[list[TrainingSample]]) -> float:
    """The loss of packed rows, with its gradient left in the module."""
    denominator = sum(sample.num_loss_tokens for row in rows for sample in row)
    total = 0.0
    for row in rows:
        inputs = PolicyInputs(to_batch(row), CPU)
        logprobs, _, _ = module(inputs)
        loss = policy_loss(
            logprobs,
            old=logprobs.detach() - 0.1,
            recorded=inputs.recorded,
            advantages=inputs.advantages,
            reference=logprobs.detach() + 0.2,
            shares=torch.full_like(inputs.advantages, 1 / denominator),
            algorithm=ALGORITHM,
        )
        loss.loss.backward()
        total += float(loss.loss.detach())
    return total


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


def with_mask(sample: TrainingSample, mask: list[bool], *, poison: float | None = None) -> TrainingSample:
    """The sample with another mask; `poison` is what stands where nothing is trained."""
    loss_mask = np.array(mask)
    rng = np.random.default_rng(int(loss_mask.sum()))
    logprobs, advantages = rng.normal(-4, 1, len(mask)), rng.normal(0, 1, len(mask))
    return TrainingSample(
        trajectory_id=sample.trajectory_id,
        token_ids=sample.token_ids,
        loss_mask=loss_mask,
        rollout_logprobs=np.where(loss_mask, logprobs, np.nan if poison is None else poison).astype(np.float32),
        advantages=np.where(loss_mask, advantages, 0.0 if poison is None else poison).astype(np.float32),
    )


MASKS = st.lists(st.booleans(), min_size=9, max_size=9).map(lambda mask: [False, *mask])


@given(st.lists(MASKS, min_size=1, max_size=4).filter(lambda masks: any(map(any, masks))), st.sampled_from([4096, 3]))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_positions_that_predict_a_trained_token_have_a_gradient(
    tiny_model: Path, factories: ModuleType, masks: list[list[bool]], chunk: int
) -> None:
    samples = [with_mask(s, mask) for s, mask in zip(factories.samples(6, [10] * len(masks)), masks, strict=True)]
    # Worked out from the masks alone: token t of document d is predicted at position 10 d + t - 1 of the packed row.
    sources = {10 * document + t - 1 for document, mask in enumerate(masks) for t, on in enumerate(mask) if on}

    module = policy(tiny_model, chunk)
    states: list[torch.Tensor] = []

    def keep(_module: object, _arguments: object, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        states.append(output.last_hidden_state)

    module.model.get_decoder().register_forward_hook(keep)
    backward(module, [samples])
    (hidden,) = states
    assert hidden.shape[1] == 10 * len(masks)
    assert hidden.grad is not None
    touched = {place for place, row in enumerate(hidden.grad[0]) if torch.count_nonzero(row)}
    assert touched == sources


@pytest.mark.parametrize("chunk", [4096, 3])
@pytest.mark.parametrize("poison", [1e6, -123.0, math.nan, math.inf])
def test_nothing_about_a_masked_token_but_its_id_has_any_influence(
    tiny_model: Path, factories: ModuleType, poison: float, chunk: int
) -> None:
    samples = factories.samples(3, [16, 21])
    masks = [sample.loss_mask.tolist() for sample in samples]
    results = []
    for value in (None, poison):
        rows = [[with_mask(sample, mask, poison=value) for sample, mask in zip(samples, masks, strict=True)]]
        module = policy(tiny_model, chunk)
        loss = backward(module, rows)
        results.append((loss, [parameter.grad for parameter in module.parameters()]))
    (loss, clean), (other_loss, other) = results
    assert loss == other_loss
    assert any(torch.count_nonzero(gradient) for gradient in clean)
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
    logprobs, _, _ = module(PolicyInputs(to_batch([]), CPU))
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


SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def saved(path: Path, config: Any) -> Path:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", ["conv", "linear_attention", "state"])
def test_layers_that_see_a_row_as_one_document_are_refused(tmp_path: Path, kind: str) -> None:
    from transformers import Lfm2Config, MambaConfig, Qwen3_5TextConfig

    grouped = SMALL | {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8}
    linear = {f"linear_{name}": 8 for name in ("key_head_dim", "value_head_dim")}
    linear |= {"linear_num_key_heads": 1, "linear_num_value_heads": 1}
    config = {
        "conv": lambda: Lfm2Config(**grouped, layer_types=["conv", "full_attention"]),
        "linear_attention": lambda: Qwen3_5TextConfig(
            **grouped, **linear, layer_types=["linear_attention", "full_attention"]
        ),
        "state": lambda: MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4),
    }[kind]()
    with pytest.raises(ModelError, match="see one packed row as one document"):
        load_policy(saved(tmp_path / "model", config), torch.float32)


def test_what_a_model_does_with_its_logits_may_stand_in_the_part_about_text(tmp_path: Path) -> None:
    """Gemma 4 caps them, and says so there; the log-probs are those of its own logits."""
    from transformers import AutoModelForCausalLM, Gemma4Config

    text = SMALL | {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8, "final_logit_softcapping": 0.05}
    text |= {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 0}
    path = saved(tmp_path / "model", Gemma4Config(text_config=text))
    ids = np.array([5, 9, 3, 12, 40, 7], np.int32)
    sample = TrainingSample(
        trajectory_id="t",
        token_ids=ids,
        loss_mask=np.arange(6) > 0,
        rollout_logprobs=np.zeros(6, np.float32),
        advantages=np.zeros(6, np.float32),
    )
    with torch.no_grad():
        logprobs = policy(path)(PolicyInputs(to_batch([sample]), CPU))[0]
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
        logits = model(torch.from_numpy(ids).long()[None]).logits[0]
    assert float(logits.abs().max()) <= 0.05
    expected = torch.log_softmax(logits, -1)[:-1].gather(-1, torch.from_numpy(ids[1:]).long()[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=2e-6)


def test_dropout_that_is_no_module_is_off_too(tmp_path: Path) -> None:
    from transformers import OPTConfig

    rates = {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5}
    config = OPTConfig(**SMALL, ffn_dim=32, max_position_embeddings=32, word_embed_proj_dim=16, **rates)
    model = load_policy(saved(tmp_path / "model", config), torch.float32)
    ids = torch.tensor([[5, 9, 3, 12]])
    decoder, documents = model.get_decoder(), PolicyInputs(to_batch([]), CPU).documents
    documents = documents.of(np.array([0, 4], np.int32), 4, CPU)
    with torch.no_grad():
        states = [getattr(decoder, mode)()(ids, documents=documents)[0] for mode in ("eval", "train", "train")]
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
