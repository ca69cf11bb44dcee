"""A plan says who runs where and what does not fit, from `config.json` alone."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from agentfly_lib.configs import PretrainedModelConfig
from agentfly_lib.planning import Machine, plan_run
from agentfly_lib.planning.machine import _gpu_memories
from agentfly_lib.planning.memory import engine_memory, rank_memory
from agentfly_lib.planning.shape import ModelShape

pytestmark = pytest.mark.stack

GIB = 2**30
LAPTOP = Machine(cpus=2, memory_bytes=24 * GIB)


def node(gpus: int = 8, gib: float = 80) -> Machine:
    return Machine(cpus=64, memory_bytes=512 * GIB, gpus=gpus, gpu_memory_bytes=int(gib * GIB))


def plan(config, machine, folder):
    return plan_run(config, machine, model=PretrainedModelConfig(name_or_path=str(folder)))


def test_the_size_of_a_published_model(qwen_3b):
    shape = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_3b)))
    assert shape.parameters == 3_085_938_688  # as its model card says: 3.09 billion
    assert (shape.layers, shape.hidden, shape.key_value, shape.vocabulary) == (36, 2048, 256, 151936)


def test_the_recipe_for_eight_gpus_has_a_place_for_everything(recipe, qwen_3b):
    config = recipe("gsm8k-8gpu")
    found = plan(config, node(), qwen_3b)
    assert found.fits, found.findings
    assert found.placement.kind == "split"
    assert [(part.name, part.gpus, part.shared) for part in found.placed] == [
        *((f"engine {number}", (number,), False) for number in range(4)),
        *((f"rank {rank}", (4 + rank,), False) for rank in range(4)),
    ]
    step = found.step
    assert (step.trajectories, step.per_minibatch, step.per_rank, step.sampled_tokens) == (512, 256, 64, 1_048_576)
    # 4096 - row of 3072 tokens, five of which fill 16384; 64 trajectories are 13 of these, twice
    assert step.microbatches_per_rank == 26


QWEN_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
QWEN_7B |= {"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False}


@pytest.mark.parametrize("path", sorted(Path("recipes").glob("*-8gpu.toml")), ids=lambda path: path.stem)
def test_every_recipe_for_eight_gpus_fits_them_with_nothing_left_over(recipe, qwen_3b, qwen_vl_3b, path):
    config = recipe(path.stem)
    if "VL" in config.model.name_or_path:
        qwen_3b = qwen_vl_3b
    if "7B" in config.model.name_or_path:
        shape = json.loads((qwen_3b / "config.json").read_text())
        (qwen_3b / "config.json").write_text(json.dumps(shape | QWEN_7B))
    found = plan(config, node(), qwen_3b)
    assert (found.fits, found.findings) == (True, ())
    assert {gpu for part in found.placed for gpu in part.gpus} == set(range(8))
    assert found.engine is not None
    seats = min(config.inference.max_sequences, found.engine.cache_tokens // config.rollout.context_length)
    assert seats * config.inference.replicas >= min(config.rollout.max_concurrency, found.step.trajectories) // 2


def test_a_model_that_sees_by_hand(recipe, qwen_vl_3b):
    shape = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_vl_3b)))
    block = 1280 * 3 * 1280 + 3 * 1280 + 1280 * 1280 + 1280 + 3 * 1280 * 3420 + 2 * 3420 + 1280 + 2 * 1280
    merger = 1280 + 5120 * 5120 + 5120 + 5120 * 2048 + 2048
    assert shape.tower == 3 * 2 * 14 * 14 * 1280 + 32 * block + merger
    assert shape.parameters == 3_085_938_688 + shape.tower
    whole = rank_memory(recipe("vision-8gpu", "learner.freeze_vision=false"), shape, on_gpu=True)
    frozen = rank_memory(recipe("vision-8gpu", "learner.freeze_vision=true"), shape, on_gpu=True)
    assert frozen.weights == whole.weights
    ranks = recipe("vision-8gpu").learner.ranks
    assert whole.gradients - frozen.gradients == pytest.approx(4 * shape.tower / ranks, abs=4)
    assert whole.optimizer - frozen.optimizer == pytest.approx(12 * shape.tower / ranks, abs=12)
    language, tower = shape.adapter_parameters(8, "all-linear"), sum(shape.tower_widths.values())
    assert language == 8 * sum(shape.linear_widths.values())
    assert set(shape.linear_widths) == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert shape.adapter_parameters(8, "all-linear", vision=True) == language + 8 * tower


def test_memory_by_hand(recipe, qwen_3b):
    config, parameters = recipe("gsm8k-8gpu"), 3_085_938_688
    shape = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_3b)))
    rank = rank_memory(config, shape, on_gpu=True)  # bfloat16, stage 2, four ranks, checkpointing
    assert rank.weights == 2 * parameters
    assert rank.gradients == 4 * (parameters // 4), "summed in float32"
    assert rank.optimizer == 12 * (parameters // 4)
    assert rank.bucket == 500_000_000 * 2
    assert (rank.gathered, rank.shared, rank.host) == (0, 0, 0)
    # what a checkpoint holds (optimizer and weights, and these for other programs too), and a file for engines
    assert rank.copies == (12 + 2 + 2 * 2 + 2) * parameters
    assert rank.activations == 16384 * (36 + 2) * 2048 * 2 + 16384 * (7 * 2048 + 3 * 256 + 5 * 11008) * 2
    # whole on every rank at stage 1, beside those that are summed; and not summed in float32 at stage 0
    assert rank_memory(recipe("gsm8k-8gpu", "learner.zero_stage=1"), shape, on_gpu=True).gradients == 6 * parameters
    plain = rank_memory(recipe("gsm8k-8gpu", "learner.zero_stage=0"), shape, on_gpu=True)
    assert (plain.gradients, plain.step) == (2 * parameters, 4 * parameters)
    assert plain.total == plain.resting + max(plain.activations + plain.logits, 4 * parameters)
    # two chunks of logits in float32; the head's gradient in float32, and rounded to bfloat16
    assert rank.logits == 512 * 151936 * 2 * 4 + 151936 * 2048 * (4 + 2)
    engine = engine_memory(config, shape, gpu_memory_bytes=80 * GIB)
    assert engine.weights == 2 * parameters
    assert engine.cache == int(80 * GIB * 0.85) - engine.weights - GIB
    assert engine.cache_tokens == engine.cache // (2 * 36 * 256 * 2)
    wide = engine_memory(recipe("gsm8k-8gpu", "inference.tensor_parallel=4"), shape, gpu_memory_bytes=80 * GIB)
    assert wide.weights == 2 * parameters // 4
    assert wide.cache_tokens == wide.cache * 4 // (2 * 36 * 256 * 2)


def test_a_penalty_keeps_a_second_model_whole_on_every_rank(recipe, qwen_3b):
    shape = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_3b)))
    config = recipe("scienceworld-8gpu")  # ZeRO 3, which deals out the model that is trained, but not this one
    off = recipe("scienceworld-8gpu", "algorithm.kl.coefficient=0.0")
    rank, without = (rank_memory(each, shape, on_gpu=True) for each in (config, off))
    assert (rank.reference, without.reference) == (2 * shape.parameters, 0)
    assert rank.total - without.total == rank.resting - without.resting == 2 * shape.parameters
    adapters = recipe("scienceworld-8gpu", "learner.lora.rank=8")  # without them, the policy is its own reference
    assert rank_memory(adapters, shape, on_gpu=True).reference == 0

    # A GPU that holds the rank alone, and not both.
    room = (rank.total + without.total) // 2 / GIB
    assert room * GIB > without.total
    tight = plan(config, Machine(cpus=64, memory_bytes=512 * GIB, gpus=8, gpu_memory_bytes=int(room * GIB)), qwen_3b)
    assert any("rank 0 would take" in each.text for each in tight.findings if each.level == "fail"), tight.findings


def test_ranks_that_share_rows_have_the_same_trajectories(recipe, qwen_3b):
    apart = plan(recipe("gsm8k-8gpu"), node(), qwen_3b).step
    shared = plan(recipe("gsm8k-8gpu", "learner.sequence_parallel=4"), node(), qwen_3b).step
    assert (apart.per_rank, shared.per_rank) == (64, 256)
    # 256 trajectories are 52 rows of five, twice
    assert (apart.microbatches_per_rank, shared.microbatches_per_rank) == (26, 104)


def test_adapters_alone_have_gradients(recipe, qwen_3b):
    shape = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_3b)))
    # a layer: q and o 2048 -> 2048, k and v 2048 -> 256, gate and up 2048 -> 11008, down 11008 -> 2048
    one = 2 * (2048 + 2048) + 2 * (2048 + 256) + 3 * (2048 + 11008)
    assert shape.adapter_parameters(8, "all-linear") == 8 * 36 * one
    assert shape.adapter_parameters(8, ("q_proj",)) == 8 * 36 * 4096
    rank = rank_memory(recipe("gsm8k-8gpu", "learner.lora.rank=8"), shape, on_gpu=True)
    assert rank.gradients == 8 * 36 * one * 4 // 4
    assert rank.optimizer == 8 * 36 * one * 12 // 4
    assert rank.weights == (shape.parameters + 8 * 36 * one) * 2


def test_what_is_offloaded_shared_or_quantised_is_not_on_the_gpu(recipe, qwen_3b):
    shape = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_3b)))
    plain = rank_memory(recipe("gsm8k-8gpu"), shape, on_gpu=True)

    def memory(*changes):
        return rank_memory(recipe("gsm8k-8gpu", *changes), shape, on_gpu=True)

    share, billion = 3_085_938_688 // 4, 10**9
    away = memory("learner.offload.optimizer=cpu")
    assert (away.optimizer, away.gradients, away.step, away.host) == (0, 4 * share, 0, (12 + 4 + 4) * share)
    whole = memory("learner.zero_stage=1", "learner.offload.optimizer=cpu")
    assert whole.gradients == 4 * 4 * share + 4 * share, "sums of all, and those that are its own for the host"
    both = memory("learner.zero_stage=3", "learner.offload.optimizer=cpu", "learner.offload.parameters=cpu")
    assert (both.weights, both.gradients, both.gathered) == (0, 0, 2 * billion)
    assert both.host == (12 + 4 + 4 + 2) * share
    disk = ("learner.offload.optimizer=nvme", "learner.offload.parameters=nvme", "learner.offload.nvme_path=/disk")
    largest = 151936 * 2048 // 4
    assert memory("learner.zero_stage=3", *disk).host == (4 * 4 + 4 + 2) * share + 5 * 2 * largest
    assert memory("learner.sequence_parallel=4").activations == plain.activations // 4
    adapters = memory("learner.lora.rank=8")
    bits = memory("learner.lora.rank=8", "learner.lora.quantize=nf4")
    linear = 36 * (2 * 2048 * 2048 + 2 * 2048 * 256 + 3 * 2048 * 11008)
    assert adapters.weights - bits.weights == pytest.approx(linear * (2 - 0.53), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "machine", "said"),
    [
        (["learner.gradient_checkpointing=false", "learner.zero_stage=0"], node(gib=24), "rank 0 would take"),
        (["inference.placement=split"], node(gpus=4), "need 8 GPUs, or 4 if they share them"),
        (["learner.device=cpu"], node(gpus=2), "inference.tensor_parallel=1 need 4 GPUs"),
        (["inference.gpu_memory_fraction=0.03"], node(), "the engine's cache holds 0 tokens"),
        (["inference.placement=colocated", "inference.device=cpu"], node(), "one of them runs on the CPU"),
    ],
)
def test_what_does_not_fit_is_said(recipe, qwen_3b, changes, machine, said):
    found = plan(recipe("gsm8k-8gpu", *changes), machine, qwen_3b)
    assert not found.fits
    assert any(said in finding.text for finding in found.findings if finding.level == "fail"), found.findings


def test_what_takes_turns_on_a_gpu_must_fit_beside_what_stays_there(recipe, qwen_3b):
    shape, parameters = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_3b))), 3_085_938_688
    one = ("inference.placement=colocated", "inference.replicas=1", "learner.ranks=1")
    found = plan(recipe("gsm8k-8gpu", *one, "inference.gpu_memory_fraction=0.3"), node(gpus=1, gib=80), qwen_3b)
    assert (found.placement.kind, found.fits) == ("colocated", True)
    assert [(part.name, part.gpus, part.shared) for part in found.placed] == [
        ("engine 0", (0,), True),
        ("rank 0", (0,), True),
    ]
    # 18 bytes of a rank stay for each parameter (weights, gradients, optimizer), a bucket and a context; 0.6 of 80 GiB
    # is 48
    assert 18 * parameters + 10**9 + GIB + 48 * GIB > 80 * GIB > 18 * parameters + 10**9 + GIB + 24 * GIB
    crowded = plan(recipe("gsm8k-8gpu", *one, "inference.gpu_memory_fraction=0.6"), node(gpus=1, gib=80), qwen_3b)
    assert not crowded.fits
    assert any("engine 0 and what stays beside it would take" in each.text for each in crowded.findings)
    assert crowded.rank is not None
    assert crowded.rank.total < 80 * GIB, "the rank alone would fit"
    assert shape.parameters == parameters


def test_what_engines_read_of_a_rank_stays_beside_them(recipe, qwen_3b):
    shape, parameters = ModelShape.of(PretrainedModelConfig(name_or_path=str(qwen_3b))), 3_085_938_688
    ipc = ("inference.weight_transfer=ipc", "learner.zero_stage=3")
    assert rank_memory(recipe("code-8gpu", *ipc), shape, on_gpu=True).shared == 2 * parameters
    dealt = rank_memory(recipe("code-8gpu", "learner.zero_stage=3"), shape, on_gpu=True)
    # room for half of the copies
    gib = (dealt.resting + parameters) / (1 - recipe("code-8gpu").inference.gpu_memory_fraction) / GIB
    crowded = plan(recipe("code-8gpu", *ipc), node(gib=gib), qwen_3b)
    assert any("engine 0 and what stays beside it" in each.text for each in crowded.findings), crowded.findings
    assert plan(recipe("code-8gpu", "learner.zero_stage=3"), node(gib=gib), qwen_3b).fits


def test_what_all_ranks_offload_must_fit_the_machine(recipe, qwen_3b):
    config = recipe("gsm8k-8gpu", "learner.offload.optimizer=cpu")
    # (12 + 4 + 4) bytes of each parameter over all ranks, and 20 of copies
    needed = 40 * 3_085_938_688 / GIB
    for gib, fits in ((needed / 0.9 + 1, True), (needed - 1, False)):
        machine = Machine(cpus=64, memory_bytes=int(gib * GIB), gpus=8, gpu_memory_bytes=80 * GIB)
        found = plan(config, machine, qwen_3b)
        assert found.fits == fits, found.findings
    assert [each.text.partition(" would take")[0] for each in found.findings] == [
        "what ranks offload, copies for checkpoints and engines"
    ]
    assert "offload less" in found.findings[0].text


def test_the_page_names_the_group_and_who_takes_turns(recipe, qwen_3b):
    from rich.console import Console

    from agentfly_lib.viewer.plan_report import render_plan

    def page(config) -> str:
        console = Console(width=160, record=True, file=io.StringIO())
        console.print(render_plan(plan(config, node(), qwen_3b), config))
        return console.export_text()

    split = page(recipe("alfworld-8gpu"))
    assert "split: GPUs of their own" in split
    assert "bundles: 2 of 2 GPUs and 4 of 1 GPU; weights go to the engines by file" in split
    turns = page(recipe("code-8gpu", "inference.weight_transfer=ipc"))
    assert "colocated: engines sleep while the learner computes" in turns
    assert "engine 1  GPU 2, 3 in turn" in turns
    assert "bundles: 8 of 1 GPU; weights go to the engines by ipc" in turns


def test_idle_gpus_and_crowded_processors_are_mentioned(recipe, qwen_3b):
    changes = ("inference.replicas=1", "learner.ranks=1")
    idle = plan(recipe("gsm8k-8gpu", *changes), node(), qwen_3b)
    assert "6 of 8 GPUs have nothing to do" in [finding.text for finding in idle.findings]
    crowded = plan_run(recipe("demo", "learner.threads=4"), LAPTOP)
    assert crowded.fits
    assert [finding.text for finding in crowded.findings] == ["5 threads of engines and ranks share 2 processors"]


def test_the_demo_fits_a_laptop(recipe):
    found = plan_run(recipe("demo"), LAPTOP)
    assert (found.fits, found.findings) == (True, ())
    assert found.shape is not None
    assert found.shape.parameters == 525_952
    assert {part.device for part in found.placed} == {"cpu"}


def test_a_model_that_is_not_here_leaves_memory_open(recipe):
    found = plan_run(recipe("gsm8k-8gpu"), node())
    assert (found.fits, found.fails) == (False, False)
    assert found.rank is None
    assert "memory is not estimated" in found.findings[0].text
    assert "--shape-from" in found.findings[0].text


def test_gpus_of_unknown_memory_leave_it_open_too(recipe, qwen_3b):
    found = plan(recipe("gsm8k-8gpu"), node(gib=0), qwen_3b)
    assert (found.fits, found.fails) == (False, False)
    assert [finding.text for finding in found.findings] == [
        "the memory of the GPUs is not known; name it (--gpu-memory-gib)"
    ]


def test_the_verdict_says_what_is_not_known(recipe, qwen_3b):
    from rich.console import Console

    from agentfly_lib.viewer.plan_report import render_plan

    config = recipe("gsm8k-8gpu")

    def verdict(found):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(render_plan(found, config))
        return console.export_text().rstrip().splitlines()[-1].strip()

    assert verdict(plan(config, node(), qwen_3b)) == "it fits"
    assert verdict(plan(config, node(gpus=4), qwen_3b)) == "it does not fit"
    assert verdict(plan_run(config, node())) == "everything has a place; whether its memory is enough is not known"


def test_gpus_as_the_driver_lists_them(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nprintf '81559\\n81559\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert _gpu_memories() == [81559 * 2**20] * 2
    machine = Machine.here()
    assert (machine.gpus, machine.gpu_memory_bytes) == (2, 81559 * 2**20)


class TestActivations:
    """What autograd keeps of a forward pass, counted, against the estimate."""

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_the_estimate_is_near_what_is_kept(self, recipe, checkpointing):
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        shape = {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 4, "vocab_size": 512}
        config = Qwen2Config(**shape, num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa")
        model = Qwen2ForCausalLM(config)
        if checkpointing:
            model.gradient_checkpointing_enable()
            model.train()
        tokens = 256
        kept: dict[int, int] = {}
        weights = {parameter.data_ptr() for parameter in model.parameters()}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            states = model.get_decoder()(input_ids=torch.arange(tokens)[None] % 512, use_cache=False).last_hidden_state
        assert states.requires_grad
        changes = [
            f"learner.microbatch_tokens={tokens}",
            f"learner.gradient_checkpointing={str(checkpointing).lower()}",
        ]
        memory = rank_memory(
            recipe("ci", "rollout.context_length=256", "rollout.max_prompt_tokens=128", *changes),
            ModelShape.from_config(config),
            on_gpu=False,
        )
        estimate = memory.activations
        if checkpointing:  # one layer is computed again in the backward pass, which has not begun
            estimate -= tokens * (7 * 64 + 3 * 32 + 5 * 172) * 4
        assert 0.7 * estimate < sum(kept.values()) < 1.3 * estimate
