"""One rank in this process: updates, versions, what leaves it, and what it does when numbers go wrong."""

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
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from agentfly_lib.errors import LearnerError, ShardError  # noqa: E402
from agentfly_lib.types import TrajectoryGroup  # noqa: E402

Make = Callable[..., Any]


def weights(learner: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.engine.policy.model.named_parameters()}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# With eps = 1 the first AdamW step, lr * g / (|g| + 1), is a smooth function of the gradient, so equal weights after
# it mean equal gradients; with the usual eps it is close to lr * sign(g) and says nothing about small entries.
GRADIENT = {"lr": 1.0, "eps": 1.0, "max_grad_norm": 1e9}


def test_one_update_is_adamw_on_the_gradient_of_the_mean_over_all_trained_tokens(
    learner: Make, factories: ModuleType, tiny_model: Path
) -> None:
    groups = factories.step_groups(0)
    subject = learner(optim=GRADIENT)
    report = subject.update_from(groups, 0)

    # The same by hand: transformers' eager attention, one sequence at a time, first principles.
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")
    terms = []
    for group in groups:
        rewards = np.array([trajectory.reward for trajectory in group.trajectories])
        if rewards.max() == rewards.min():
            continue
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            for segment in trajectory.segments:
                ids = torch.from_numpy(segment.token_ids).long()
                logprobs = torch.log_softmax(model(ids[None]).logits[0], -1)
                for position in np.flatnonzero(segment.loss_mask):
                    chosen = logprobs[position - 1, ids[position]]
                    weight = min(float(torch.exp(chosen.detach() - float(segment.logprobs[position]))), 2.0)
                    terms.append(-float(advantage) * weight * torch.exp(chosen - chosen.detach()))
    loss = torch.stack(terms).mean()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    expected = {
        name: parameter.detach() - gradients[name] / (gradients[name].abs() + 1)
        for name, parameter in model.named_parameters()
    }
    assert difference(weights(subject), expected) < 2e-6
    assert report.metrics["train/policy_loss/mean"] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert report.metrics["train/grad_norm/mean"] == pytest.approx(float(norm), rel=1e-4)
    assert report.metrics["train/loss_tokens/count"] == len(terms)
    assert report.metrics["train/advantage/mean"] == pytest.approx(0.0, abs=1e-6)
    assert 0 < report.metrics["train/advantage/std"] < report.metrics["train/advantage/max_abs"]


def test_micro_batch_size_and_accumulation_change_nothing(learner: Make, factories: ModuleType) -> None:
    results = []
    for tokens, chunk in ((10_000, 4096), (64, 4096), (1, 3)):
        subject = learner(optim=GRADIENT, learner={"microbatch_tokens": tokens, "logit_chunk_tokens": chunk})
        subject.update_from(factories.step_groups(0), 0)
        results.append(weights(subject))
    assert difference(results[0], results[1]) < 2e-6
    assert difference(results[0], results[2]) < 2e-6


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_of_micro_batches_in_bfloat16_are_summed_in_float32(
    learner: Make, factories: ModuleType, stage: int
) -> None:
    """1 + 1/256 is 1 in bfloat16: there, all that follows a large gradient would be lost."""
    subject = learner(optim=GRADIENT, learner={"zero_stage": stage, "dtype": "bfloat16", "microbatch_tokens": 1})
    norm, passes = subject.engine.policy.model.model.norm.weight, iter([1.0])
    for parameter in subject.engine.policy.parameters():
        if parameter is not norm:
            parameter.register_hook(torch.zeros_like)
    norm.register_hook(lambda gradient: torch.full_like(gradient, next(passes, 1 / 256)))
    metrics = subject.update_from(factories.step_groups(0), 0).metrics
    small = metrics["train/microbatches/count"] - 1
    assert small > 10
    assert metrics["train/grad_norm/mean"] == pytest.approx(np.sqrt(32) * (1 + small / 256), rel=1e-4)


@pytest.mark.parametrize("stage", [0, 3])
def test_recomputed_activations_change_nothing_from_the_first_update_on(
    learner: Make, factories: ModuleType, stage: int
) -> None:
    results, passes = [], []
    for checkpointing in (False, True):
        subject = learner(optim=GRADIENT, learner={"gradient_checkpointing": checkpointing, "zero_stage": stage})
        layer, calls = subject.engine.policy.model.model.layers[0].input_layernorm, []
        layer.register_forward_hook(lambda *_, calls=calls: calls.append(torch.is_grad_enabled()))
        subject.update_from(factories.step_groups(0), 0)
        passes.append(sum(calls))
        results.append(exported(subject))
    assert passes[0] > 0
    assert passes[1] == 2 * passes[0], "the backward pass computes each layer again"
    assert difference(*results) < 2e-6


def exported(learner: Any) -> dict[str, torch.Tensor]:
    """Whole weights, also of ZeRO 3."""
    from agentfly_lib.training.weights import gather_weights

    return {
        name: tensor.clone()
        for name, tensor in gather_weights(learner.engine.policy.model, zero_stage=learner.engine.zero_stage).items()
    }


def test_gradients_are_clipped_by_their_global_norm(learner: Make, factories: ModuleType, tiny_model: Path) -> None:
    subject = learner(optim=GRADIENT)
    before = load_file(tiny_model / "model.safetensors")
    norm = subject.update_from(factories.step_groups(0), 0).metrics["train/grad_norm/mean"]
    free = weights(subject)
    limit = norm / 4
    subject = learner(optim=GRADIENT | {"max_grad_norm": limit})
    report = subject.update_from(factories.step_groups(0), 0)
    assert report.metrics["train/grad_norm/mean"] == pytest.approx(norm, rel=1e-5)
    for name, clipped in weights(subject).items():
        step = before[name] - free[name]  # g / (|g| + 1), so g = step / (1 - |step|)
        gradient = step / (1 - step.abs()) / 4
        torch.testing.assert_close(before[name] - clipped, gradient / (gradient.abs() + 1), rtol=1e-3, atol=2e-6)


def test_the_same_shards_give_the_same_bits(learner: Make, factories: ModuleType) -> None:
    runs = []
    for _ in range(2):
        subject = learner(optim={"minibatches": 2}, algorithm={"kl": {"coefficient": 0.1}})
        digests = [subject.update_from(factories.step_groups(step), step).weights_digest for step in range(2)]
        runs.append((digests, weights(subject)))
    assert runs[0][0] == runs[1][0]
    assert len(set(runs[0][0])) == 2
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])


def test_later_minibatches_are_measured_against_the_policy_at_the_start_of_the_step(
    learner: Make, factories: ModuleType
) -> None:
    once = learner().update_from(factories.step_groups(0), 0).metrics
    assert once["train/ratio/max"] == pytest.approx(1.0)
    assert once["train/updates/count"] == 1
    twice = learner(optim={"minibatches": 2}).update_from(factories.step_groups(0), 0).metrics
    assert twice["train/ratio/max"] > 1.01
    assert twice["train/updates/count"] == 2
    # Engine and learner are compared at the start of the step, so the mismatch does not move with the weights.
    assert twice["train/mismatch_kl/mean"] == pytest.approx(once["train/mismatch_kl/mean"], rel=1e-5)


def test_the_kl_penalty_is_against_the_starting_model(learner: Make, factories: ModuleType) -> None:
    subject = learner(algorithm={"kl": {"coefficient": 0.1}})
    first = subject.update_from(factories.step_groups(0), 0).metrics["train/kl_reference/mean"]
    second = subject.update_from(factories.step_groups(1), 1).metrics["train/kl_reference/mean"]
    assert first == pytest.approx(0.0, abs=1e-9)
    assert second > 1e-4


def test_nothing_to_train_on_is_a_counted_no_op_with_a_new_version(learner: Make, factories: ModuleType) -> None:
    subject = learner()
    before = weights(subject)
    equal = [
        TrajectoryGroup(
            id=group.id,
            problem=group.problem,
            trajectories=tuple(dataclasses.replace(item, reward=1.0) for item in group.trajectories),
        )
        for group in factories.step_groups(0)
    ]
    report = subject.update_from(equal, 0)
    assert difference(before, weights(subject)) == 0.0
    assert (report.policy_version, subject.policy_version) == (1, 1)
    assert report.metrics["train/empty_updates/count"] == 1
    assert report.metrics["train/no_signal_groups/count"] == 4
    assert report.metrics["train/updates/count"] == 0


def test_steps_are_trained_in_order(learner: Make, factories: ModuleType) -> None:
    subject = learner()
    with pytest.raises(LearnerError, match="it needs version 3"):
        subject.update_from(factories.step_groups(3), 3)
    subject.update_from(factories.step_groups(0), 0)
    assert subject.policy_version == 1


def poisoned(groups: list[TrajectoryGroup], name: str) -> list[TrajectoryGroup]:
    """One trajectory gets recorded log-probs that make its correction weight, and so its loss, not finite."""
    made = []
    for group in groups:
        members = []
        for item in group.trajectories:
            if item.id == name:
                segments = tuple(
                    dataclasses.replace(part, logprobs=np.where(part.loss_mask, -np.inf, np.nan).astype(np.float32))
                    for part in item.segments
                )
                members.append(dataclasses.replace(item, segments=segments, reward=7.0))
            else:
                members.append(item)
        made.append(dataclasses.replace(group, trajectories=tuple(members)))
    return made


def break_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the loss NaN wherever the recorded log-prob is -inf (the real loss clamps it)."""
    from agentfly_lib.training import update

    real = update.policy_loss

    def broken(logprobs: torch.Tensor, **others: Any) -> Any:
        hole = torch.where(torch.isinf(others["recorded"]), torch.nan, 0.0)
        others["old"] = logprobs.detach()
        return real(logprobs + hole, **others)

    monkeypatch.setattr(update, "policy_loss", broken)


@pytest.mark.parametrize("stage", [0, 2])
def test_updates_that_are_not_finite_are_skipped_counted_and_end_the_run(
    learner: Make, factories: ModuleType, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    subject = learner(learner={"max_nonfinite_steps": 2, "zero_stage": stage})
    before = weights(subject)
    break_loss(monkeypatch)
    report = subject.update_from(poisoned(factories.step_groups(0), "000000-0/2"), 0)
    assert report.metrics["train/skipped_updates/count"] == 1
    assert difference(before, weights(subject)) == 0.0
    with pytest.raises(LearnerError, match=r"2 updates in a row.*000001-1/3") as caught:
        subject.update_from(poisoned(factories.step_groups(1), "000001-1/3"), 1)
    assert "000001-0" not in str(caught.value)
    assert difference(before, weights(subject)) == 0.0
    with pytest.raises(LearnerError, match="failed half-way"):
        subject.update_from(factories.step_groups(1), 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_gradient_that_is_not_finite_is_skipped_where_the_loss_is_finite(
    learner: Make, factories: ModuleType, monkeypatch: pytest.MonkeyPatch, stage: int, dtype: str
) -> None:
    from agentfly_lib.training import engine

    real = engine._deepspeed_config

    def in_small_groups(*arguments: Any, **named: Any) -> dict[str, Any]:
        config = real(*arguments, **named)
        config["zero_optimization"]["sub_group_size"] = 1000  # ZeRO 3 steps one at a time; all must be skipped
        return config

    monkeypatch.setattr(engine, "_deepspeed_config", in_small_groups)
    subject = learner(learner={"max_nonfinite_steps": 2, "zero_stage": stage, "dtype": dtype})
    subject.update_from(factories.step_groups(0), 0)  # AdamW's moments are there: a step without a gradient would move
    before = exported(subject)
    norm = subject.engine.policy.model.model.norm.weight
    poison = norm.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
    report = subject.update_from(factories.step_groups(1), 1)
    poison.remove()
    assert report.metrics["train/skipped_updates/count"] == 1
    assert np.isfinite(report.metrics["train/policy_loss/mean"])
    assert difference(before, exported(subject)) == 0.0
    after = subject.update_from(factories.step_groups(2), 2)
    assert after.metrics["train/skipped_updates/count"] == 0
    assert difference(before, exported(subject)) > 0.0


def test_a_finite_update_ends_the_row_of_skipped_ones(
    learner: Make, factories: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = learner(learner={"max_nonfinite_steps": 2})
    break_loss(monkeypatch)
    for step, culprit in enumerate(["000000-0/2", "", "000002-0/2"]):
        report = subject.update_from(poisoned(factories.step_groups(step), culprit), step)
        assert report.metrics["train/skipped_updates/count"] == bool(culprit)
    assert subject.policy_version == 3


@pytest.mark.parametrize("tied", [True, False])
def test_canary_and_exported_weights_are_what_a_fresh_model_computes(
    learner: Make, factories: ModuleType, tmp_path: Path, tied: bool
) -> None:
    from transformers import AutoModelForCausalLM

    path = factories.write_tiny_model(tmp_path / "model", tied=tied)
    subject = learner(model=path, rollout={"sampling": {"temperature": 0.5}})
    subject.update_from(factories.step_groups(0), 0)
    subject.export_weights(tmp_path / "weights.safetensors", 1)
    exported = load_file(tmp_path / "weights.safetensors")
    with safe_open(tmp_path / "weights.safetensors", "pt") as file:
        assert file.metadata()["policy_version"] == "1"
    assert exported.keys() == load_file(path / "model.safetensors").keys()
    assert ("lm_head.weight" in exported) is not tied

    model = AutoModelForCausalLM.from_pretrained(path)
    model.load_state_dict(exported, strict=tied is False)
    model.tie_weights()
    ids = subject.canary_token_ids
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    expected = [float(logprobs[place, ids[place + 1]]) for place in range(len(ids) - 1)]
    np.testing.assert_allclose(subject.canary_logprobs(ids), expected, atol=2e-6)
    with pytest.raises(LearnerError, match="holds version 1"):
        subject.export_weights(tmp_path / "weights.safetensors", 2)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_going_on_from_a_checkpoint_is_bit_exact(
    learner: Make, factories: ModuleType, tmp_path: Path, stage: int
) -> None:
    sections = {"learner": {"zero_stage": stage}, "optim": {"minibatches": 2, "warmup_steps": 2}}

    def finish(subject: Any) -> tuple[list[str], dict[str, torch.Tensor]]:
        digests = [subject.update_from(factories.step_groups(step), step).weights_digest for step in (2, 3)]
        subject.export_weights(tmp_path / "end.safetensors", 4)
        return digests, load_file(tmp_path / "end.safetensors")

    subject = learner(**sections)
    for step in (0, 1):
        subject.update_from(factories.step_groups(step), step)
    ref = factories.saved(subject, tmp_path / "000002")
    digests, through = finish(subject)
    resumed = learner(checkpoint=ref, **sections)
    assert resumed.policy_version == 2
    again_digests, again = finish(resumed)
    assert again_digests == digests
    assert all(torch.equal(through[name], again[name]) for name in through)


def test_a_checkpoint_loads_as_a_model(learner: Make, factories: ModuleType, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    subject = learner()
    subject.update_from(factories.step_groups(0), 0)
    ref = factories.saved(subject, tmp_path / "000001")
    model = AutoModelForCausalLM.from_pretrained(ref.path / "hf")
    assert difference(dict(model.named_parameters()), weights(subject)) == 0.0
    assert (ref.path / "hf" / "tokenizer.json").exists()


def test_a_damaged_or_foreign_checkpoint_is_refused(learner: Make, factories: ModuleType, tmp_path: Path) -> None:
    ref = factories.saved(learner(), tmp_path / "000000")
    with pytest.raises(LearnerError, match=r"ZeRO 0, float32.*Go on with the former, or start a new run"):
        learner(checkpoint=ref, learner={"zero_stage": 2, "allow_reshape": True})  # there is no way from 0 to 2
    with pytest.raises(
        LearnerError, match=r"another config: optim\.lr: 0\.01 -> 0\.5; optim\.minibatches: 1 -> 2\. Go on"
    ):
        learner(checkpoint=ref, optim={"lr": 0.5, "minibatches": 2})
    with pytest.raises(LearnerError, match="another config: model: 'tiny' -> 'changed'"):
        learner(checkpoint=ref, fingerprint="changed")
    assert learner(checkpoint=ref, learner={"microbatch_tokens": 32}).policy_version == 0  # no part of what is learnt
    target = next((ref.path / "deepspeed").rglob("*.pt"))
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    target.write_bytes(content)
    with pytest.raises(ShardError, match=target.name):
        learner(checkpoint=ref)


def test_bfloat16_trains(learner: Make, factories: ModuleType, tmp_path: Path) -> None:
    for stage in (0, 1, 2, 3):
        subject = learner(learner={"dtype": "bfloat16", "zero_stage": stage, "gradient_checkpointing": True})
        report = subject.update_from(factories.step_groups(0), 0)
        assert report.metrics["train/skipped_updates/count"] == 0
        assert report.metrics["train/grad_norm/mean"] > 0
        subject.export_weights(tmp_path / "weights.safetensors", 1)
        assert {tensor.dtype for tensor in load_file(tmp_path / "weights.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_going_on_in_another_zero_stage(
    learner: Make, factories: ModuleType, tmp_path: Path, before: int, after: int, dtype: str
) -> None:
    optim = {"eps": 1e-3}
    subject = learner(learner={"zero_stage": before, "dtype": dtype}, optim=optim)
    for step in (0, 1):
        subject.update_from(factories.step_groups(step), step)
    ref = factories.saved(subject, tmp_path / "000002")
    held = weights(subject)
    canary = subject.canary_logprobs(subject.canary_token_ids)
    subject.update_from(factories.step_groups(2), 2)
    expected = weights(subject)
    with pytest.raises(LearnerError, match=r"ZeRO \d, \w+\. Go on with the former, set learner\.allow_reshape=true"):
        learner(checkpoint=ref, learner={"zero_stage": after, "dtype": dtype}, optim=optim)
    resumed = learner(checkpoint=ref, learner={"zero_stage": after, "dtype": dtype, "allow_reshape": True}, optim=optim)
    assert resumed.policy_version == 2
    assert difference(held, weights(resumed)) == 0.0
    assert resumed.canary_logprobs(resumed.canary_token_ids) == canary
    resumed.update_from(factories.step_groups(2), 2)
    assert difference(expected, weights(resumed)) < (
        1e-6 if dtype == "float32" else 2e-2
    )  # two steps of bfloat16 near 1
    assert [item.name for item in tmp_path.iterdir()] == ["000002"]


def test_a_checkpoint_that_cannot_be_converted_says_so_and_leaves_nothing(
    learner: Make, factories: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = factories.saved(learner(learner={"zero_stage": 1}), tmp_path / "000000")

    def broken(arguments: Any) -> None:
        (Path(arguments.output_folder) / "half").write_text("")
        raise KeyError("exp_avg")

    from deepspeed.checkpoint import ds_to_universal

    monkeypatch.setattr(ds_to_universal, "main", broken)
    with pytest.raises(LearnerError, match=r"cannot convert.*KeyError: 'exp_avg'.*go on with the shape"):
        learner(checkpoint=ref, learner={"zero_stage": 2, "allow_reshape": True})
    assert [item.name for item in tmp_path.iterdir()] == ["000000"]
