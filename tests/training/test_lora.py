"""Adapters: only they are trained, and everyone outside of the learner sees merged weights."""

from __future__ import annotations

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
pytest.importorskip("peft")
from safetensors.torch import load_file  # noqa: E402

from agentfly_lib.errors import ConfigError, LearnerError  # noqa: E402

Make = Callable[..., Any]
LORA = {"lora": {"rank": 4, "alpha": 8.0}}
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def parameters(learner: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.engine.policy.model.named_parameters()}


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_only_adapters_are_trained(learner: Make, factories: ModuleType, stage: int) -> None:
    subject = learner(learner=LORA | {"zero_stage": stage})
    before = parameters(subject)
    report = subject.update_from(factories.step_groups(0), 0)
    after = parameters(subject)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    # A of a fresh adapter has no gradient, for it is multiplied by B = 0; every B moves.
    assert {name.split(".")[-4] for name in moved} == set(LAYERS)
    assert all(".lora_B." in name for name in moved)
    assert len(moved) == 2 * len(LAYERS)
    subject.update_from(factories.step_groups(1), 1)
    moved = {name for name, value in parameters(subject).items() if not torch.equal(before[name], value)}
    assert len(moved) == 4 * len(LAYERS)
    assert all(".lora_A." in name or ".lora_B." in name for name in moved)
    trainable = [name for name, value in subject.engine.policy.model.named_parameters() if value.requires_grad]
    assert len(trainable) == 4 * len(LAYERS)
    groups = subject.engine.optimizer.param_groups
    held = sum(value.numel() for group in groups for value in group["params"])
    wanted = sum(before[name].numel() for name in trainable)
    assert wanted <= held <= wanted + 64  # flat partitions are padded
    assert report.metrics["train/grad_norm/mean"] > 0


def test_gradients_are_those_of_the_product_by_hand(learner: Make, factories: ModuleType) -> None:
    """The gradient of B is factor * G A^T, where G is the gradient of the whole weight."""
    smooth = {"lr": 1.0, "eps": 1.0, "max_grad_norm": 1e9}  # the first step is then g / (|g| + 1)
    whole = learner(optim=smooth)
    before = parameters(whole)
    whole.update_from(factories.step_groups(0), 0)
    moved = {name: before[name] - value for name, value in parameters(whole).items()}
    subject = learner(optim=smooth, learner=LORA)
    start = parameters(subject)
    subject.update_from(factories.step_groups(0), 0)
    for name, value in parameters(subject).items():
        if ".lora_B." not in name:
            continue
        step = moved[name.replace(".lora_B.default", "")].double()
        gradient = step / (1 - step.abs())
        expected = 2.0 * gradient @ start[name.replace("lora_B", "lora_A")].double().T
        torch.testing.assert_close(-value.double(), expected / (expected.abs() + 1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_exported_weights_are_merged_and_give_the_learners_log_probs(
    learner: Make, factories: ModuleType, tiny_model: Path, tmp_path: Path, stage: int
) -> None:
    from transformers import AutoModelForCausalLM

    subject = learner(learner=LORA | {"zero_stage": stage})
    for step in range(2):
        subject.update_from(factories.step_groups(step), step)
    canary = subject.export_weights(tmp_path / "weights.safetensors", 2)
    exported, start = load_file(tmp_path / "weights.safetensors"), load_file(tiny_model / "model.safetensors")
    assert {name: value.shape for name, value in exported.items()} == {n: v.shape for n, v in start.items()}
    assert not torch.equal(exported["model.layers.0.mlp.up_proj.weight"], start["model.layers.0.mlp.up_proj.weight"])
    assert torch.equal(exported["model.embed_tokens.weight"], start["model.embed_tokens.weight"])
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.load_state_dict(exported, strict=False)
    ids = subject.canary_token_ids
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    expected = [float(logprobs[place, ids[place + 1]]) for place in range(len(ids) - 1)]
    np.testing.assert_allclose(canary, expected, atol=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_going_on_from_a_checkpoint_of_adapters_is_bit_exact(
    learner: Make, factories: ModuleType, tmp_path: Path, stage: int
) -> None:
    from transformers import AutoModelForCausalLM

    sections = {"learner": LORA | {"zero_stage": stage}, "optim": {"minibatches": 2}}
    subject = learner(**sections)
    for step in (0, 1):
        subject.update_from(factories.step_groups(step), step)
    ref = factories.saved(subject, tmp_path / "000002")
    canary = subject.canary_logprobs(subject.canary_token_ids)
    digests = [subject.update_from(factories.step_groups(step), step).weights_digest for step in (2, 3)]
    subject.export_weights(tmp_path / "through.safetensors", 4)

    stored = torch.load(next((ref.path / "deepspeed").rglob("*model_states.pt")), weights_only=False)["module"]
    assert stored or stage == 3  # where they lie in the optimizer's files alone
    assert all(".lora_" in name for name in stored)
    model = AutoModelForCausalLM.from_pretrained(ref.path / "hf")
    ids = subject.canary_token_ids
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    np.testing.assert_allclose(canary, [float(logprobs[at, ids[at + 1]]) for at in range(len(ids) - 1)], atol=1e-5)

    resumed = learner(checkpoint=ref, **sections)
    assert [resumed.update_from(factories.step_groups(step), step).weights_digest for step in (2, 3)] == digests
    resumed.export_weights(tmp_path / "again.safetensors", 4)
    through, again = load_file(tmp_path / "through.safetensors"), load_file(tmp_path / "again.safetensors")
    assert all(torch.equal(value, through[name]) for name, value in again.items())


def test_peft_itself_loads_what_is_exported_and_saved(
    learner: Make, factories: ModuleType, tiny_model: Path, tmp_path: Path
) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    sections = {"learner": LORA | {"zero_stage": 3}, "keep": {"adapters_only": True}}
    subject = learner(**sections)
    for step in range(2):
        subject.update_from(factories.step_groups(step), step)
    canary = subject.export_adapter(tmp_path / "adapter", 2)
    ref = factories.saved(subject, tmp_path / "000002")
    ids = subject.canary_token_ids
    for folder in (tmp_path / "adapter", ref.path / "adapter"):
        model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), folder)
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
        expected = [float(logprobs[place, ids[place + 1]]) for place in range(len(ids) - 1)]
        np.testing.assert_allclose(canary, expected, atol=1e-5)
    assert not (ref.path / "hf" / "model.safetensors").exists(), "adapters alone were asked for"
    digest = subject.update_from(factories.step_groups(2), 2).weights_digest
    assert learner(checkpoint=ref, **sections).update_from(factories.step_groups(2), 2).weights_digest == digest
    with pytest.raises(LearnerError, match=r"learner\.lora is not set"):
        learner().export_adapter(tmp_path / "none", 0)


@pytest.mark.parametrize("stage", [0, 2])
def test_adapters_over_weights_of_four_bits(learner: Make, factories: ModuleType, tmp_path: Path, stage: int) -> None:
    """What is exported is what the bits stand for, plus the adapters: an engine computes the learner's log-probs."""
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM

    sections = {"learner": {"lora": LORA["lora"] | {"quantize": "nf4"}, "zero_stage": stage}}
    subject = learner(**sections)
    model = subject.engine.policy.model
    assert model.model.layers[0].mlp.up_proj.base_layer.weight.dtype == torch.uint8
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    for step in range(2):
        report = subject.update_from(factories.step_groups(step), step)
    assert report.metrics["train/grad_norm/mean"] > 0
    assert all(torch.equal(value, frozen[name]) for name, value in model.named_parameters() if name in frozen)
    canary = subject.export_weights(tmp_path / "weights.safetensors", 2)
    ref = factories.saved(subject, tmp_path / "000002")
    served = AutoModelForCausalLM.from_pretrained(ref.path / "hf")
    ids = subject.canary_token_ids
    with torch.no_grad():
        logprobs = torch.log_softmax(served(torch.tensor([ids])).logits[0], -1)
    np.testing.assert_allclose(canary, [float(logprobs[at, ids[at + 1]]) for at in range(len(ids) - 1)], atol=1e-4)
    digest = subject.update_from(factories.step_groups(2), 2).weights_digest
    assert learner(checkpoint=ref, **sections).update_from(factories.step_groups(2), 2).weights_digest == digest


def test_what_cannot_be_had_is_refused_before_anything_is_loaded(
    learner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    hidden = ("bitsandbytes", "liger_kernel")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else find(name, *rest))
    with pytest.raises(ConfigError, match="pip install bitsandbytes"):
        learner(model=tmp_path, learner={"lora": {"quantize": "nf4"}})
    with pytest.raises(ConfigError, match="pip install liger-kernel"):
        learner(learner={"liger": True})
    with pytest.raises(ValueError, match="ZeRO 3 cannot deal out weights of four bits"):
        learner(learner={"lora": {"quantize": "nf4"}, "zero_stage": 3})


def test_kernels_that_are_demanded_and_unknown_for_a_model_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger itself only logs that it knows no such model. A stand-in for its package, which needs a GPU."""
    import importlib.util
    import sys
    from types import ModuleType, SimpleNamespace

    from agentfly_lib.configs import LearnerConfig
    from agentfly_lib.training.liger import use_liger

    applied: list[Any] = []
    names = ["liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.monkey_patch"]
    package, transformers, patches = (ModuleType(name) for name in names)
    transformers._apply_liger_kernel_to_instance = lambda model, **_: applied.append(model)  # type: ignore[attr-defined]
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen2": None}  # type: ignore[attr-defined]
    for name, module in zip(names, (package, transformers, patches), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    known, unknown = (SimpleNamespace(config=SimpleNamespace(model_type=kind)) for kind in ("qwen2", "opt"))
    gpu: Any = torch.device("cuda")
    assert use_liger(known, LearnerConfig(liger=True), gpu)  # type: ignore[arg-type]
    assert not use_liger(unknown, LearnerConfig(), gpu)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no kernels for opt"):
        use_liger(unknown, LearnerConfig(liger=True), gpu)  # type: ignore[arg-type]
    assert applied == [known]


def test_a_run_of_adapters_goes_on_in_another_zero_stage(learner: Make, factories: ModuleType, tmp_path: Path) -> None:
    optim = {"lr": 1e-2, "eps": 1e-3}
    subject = learner(learner=LORA | {"zero_stage": 1}, optim=optim)
    for step in (0, 1):
        subject.update_from(factories.step_groups(step), step)
    ref = factories.saved(subject, tmp_path / "000002")
    subject.update_from(factories.step_groups(2), 2)
    expected = parameters(subject)
    resumed = learner(checkpoint=ref, learner=LORA | {"zero_stage": 2, "allow_reshape": True}, optim=optim)
    resumed.update_from(factories.step_groups(2), 2)
    assert max(float((value - expected[name]).abs().max()) for name, value in parameters(resumed).items()) < 1e-6


@pytest.mark.parametrize("stage", [0, 2])
def test_the_kl_reference_is_the_model_without_adapters(learner: Make, factories: ModuleType, stage: int) -> None:
    """Held against a second model of the starting weights, with which gradients and penalties must agree."""
    sections = {"learner": LORA | {"zero_stage": stage}, "algorithm": {"kl": {"coefficient": 0.1}}}
    results = []
    for second_model in (False, True):
        subject = learner(**sections)
        if second_model:
            from agentfly_lib.training.policy import PolicyModule, load_policy

            subject._reference = PolicyModule(
                load_policy(subject.model.path, torch.float32).eval(), logit_chunk_tokens=4096
            )
        penalties = [
            subject.update_from(factories.step_groups(step), step).metrics["train/kl_reference/mean"]
            for step in range(3)
        ]
        results.append((penalties, parameters(subject)))
    (own, weights), (other, expected) = results
    assert own[0] == pytest.approx(0.0, abs=1e-9)
    assert own[2] > 1e-4
    assert own == pytest.approx(other, rel=1e-5, abs=1e-9)
    assert max(float((weights[name] - expected[name]).abs().max()) for name in weights) < 1e-5


def test_named_layers_alone(learner: Make) -> None:
    subject = learner(learner={"lora": {"target_modules": ["q_proj", "v_proj"]}})
    adapted = {name.split(".")[-4] for name in parameters(subject) if ".lora_A." in name}
    assert adapted == {"q_proj", "v_proj"}


@pytest.mark.parametrize(("names", "message"), [(["nowhere"], "nowhere"), (["embed_tokens"], "embeddings")])
def test_layers_that_take_no_adapters_are_refused(learner: Make, names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learner(learner={"lora": {"target_modules": names}})


def test_a_checkpoint_of_other_adapters_is_refused(learner: Make, factories: ModuleType, tmp_path: Path) -> None:
    ref = factories.saved(learner(learner=LORA), tmp_path / "000000")
    with pytest.raises(LearnerError, match=r"another config: learner\.lora\.rank: 4 -> 8"):
        learner(checkpoint=ref, learner={"lora": {"rank": 8, "alpha": 8.0}})
    with pytest.raises(LearnerError, match="another config: learner"):
        learner(checkpoint=ref)
