"""How fast the parts of a step are on one GPU, in at most six minutes: `python tests/gpu/bench.py`. Offline.

A Qwen2 of half a billion parameters, made on this machine, in bfloat16:

- rollout: tokens a second of a collection (chat format, tools, shards), and of vLLM alone on the same turns. The policy
  is scripted in its weights, so that both sample the same tokens.
- update: trained tokens a second, and the share of the card's own matmul rate, measured beside it, that the model's
  arithmetic makes up (model FLOPs utilisation).
- weights: seconds from the learner's GPU memory into a running engine, against copying the bytes.

Each part has a process and its peak of GPU memory of its own. What is not installed (vLLM, DeepSpeed) is left out and
said. `--size small --device cpu` runs the same program where there is no GPU: its figures then mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import Finding, show
from benchmarks.scored_rollouts import scored_groups

if TYPE_CHECKING:
    import torch

    from agentfly_lib.types import TrajectoryGroup

PARTS = {"pipeline": ("vllm",), "alone": ("vllm",), "update": ("deepspeed",), "weights": ("vllm",)}
"""Parts in their order, with the packages that each needs."""
PART_SECONDS = 110.0
"""Of one part, start of the engine included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much work there is."""

    network: dict[str, int]
    problems: int
    chains: int
    calls: int
    turn_tokens: int
    trajectories: int
    trajectory_tokens: int
    microbatch_tokens: int
    matmul: int
    """Rows and columns of the product that tells the card's rate."""


SIZES = {
    "half-billion": Size(
        network={
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
        },
        problems=32,
        chains=8,
        calls=3,
        turn_tokens=256,
        trajectories=128,
        trajectory_tokens=1024,
        microbatch_tokens=16_384,
        matmul=8192,
    ),
    "small": Size(
        network={"max_position_embeddings": 512},
        problems=2,
        chains=2,
        calls=2,
        turn_tokens=16,
        trajectories=8,
        trajectory_tokens=96,
        microbatch_tokens=256,
        matmul=256,
    ),
}


def main(size: str, device: str) -> bool:
    """Runs all parts that can be run; True if the bars are met."""
    found: dict[str, dict[str, float]] = {}
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        _part("models", size, device, folder)
        for part, packages in PARTS.items():
            if missing := [name for name in packages if not _installed(name)]:
                left_out.append(f"{part} ({', '.join(missing)} is not installed)")
            else:
                found[part] = _part(part, size, device, folder)
    notes = f"{size}, {device}" + (f"; not measured: {'; '.join(left_out)}" if left_out else "")
    return show(f"gpu-{size}-{device}", findings(found), notes=notes)


def findings(found: dict[str, dict[str, float]]) -> list[Finding]:
    """What the parts that ran have found."""
    made: list[Finding] = []
    if "alone" in found and "pipeline" in found:
        alone, pipeline = (found[name]["tokens"] / found[name]["seconds"] for name in ("alone", "pipeline"))
        if found["alone"]["tokens"] != found["pipeline"]["tokens"]:
            raise RuntimeError(f"both must sample the same tokens, and sampled {found['alone']}, {found['pipeline']}")
        made += [
            Finding(
                what="rollout: pipeline / vLLM alone, tokens a second", value=pipeline / alone, unit="x", floor=0.95
            ),
            Finding(what="rollout: pipeline", value=pipeline, unit="tokens/s"),
            Finding(what="rollout: vLLM alone", value=alone, unit="tokens/s"),
            Finding(what="rollout: peak memory", value=found["pipeline"]["peak_gib"], unit="GiB"),
        ]
    if update := found.get("update"):
        made += [
            Finding(what="update", value=update["tokens"] / update["seconds"], unit="tokens/s"),
            Finding(
                what="update: model FLOPs utilisation, of the measured matmul rate",
                value=update["flops"] / update["seconds"] / update["matmul_flops"],
                unit="",
            ),
            Finding(what="matmul rate", value=update["matmul_flops"] / 1e12, unit="TFLOP/s"),
            Finding(what="update: peak memory", value=update["peak_gib"], unit="GiB"),
        ]
    if weights := found.get("weights"):
        made += [
            Finding(what="weights: hand-over", value=weights["seconds"], unit="s"),
            Finding(what="weights: hand-over / copying the bytes", value=weights["ratio"], unit="x"),
        ]
    return made


def model_flops(config: Any, *, body: int, lengths: list[int], trained: int) -> float:
    """Of one forward and backward pass: what the mathematics of the model needs, nothing that is computed twice.

    Six for each parameter and token (two forward, four backward), of the head only for tokens that are trained on.
    Causal attention costs each layer `2 * length**2 * hidden` forward and twice that backward (PaLM,
    appendix B, halved).

    body: parameters without embedding and head.
    """
    attention = 6 * config.num_hidden_layers * config.hidden_size * sum(length**2 for length in lengths)
    return 6.0 * body * sum(lengths) + 6.0 * config.vocab_size * config.hidden_size * trained + attention


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _part(part: str, size: str, device: str, folder: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", part, "--size", size, "--device", device, "--folder", folder]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PART_SECONDS, check=False, env=variables)
    if ended.returncode:
        raise RuntimeError(f"part {part} failed: {ended.stderr.strip()[-3000:]}")
    return json.loads(ended.stdout.strip().splitlines()[-1])


def _models(size: Size, device: str, folder: Path) -> dict[str, float]:
    """The scripted policy, and one of random weights: a GPU multiplies zeros faster than numbers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from benchmarks.scripted_model import make_scripted_model

    scripted = make_scripted_model(
        folder / "scripted", turn_tokens=size.turn_tokens, network=size.network, dtype=_dtype(device)
    )
    config = AutoConfig.from_pretrained(scripted)
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(getattr(torch, _dtype(device)))
    model.save_pretrained(folder / "random")
    (folder / "random" / "tokenizer.json").write_bytes((scripted / "tokenizer.json").read_bytes())
    return {}


def _dtype(device: str) -> str:
    return "float32" if device == "cpu" else "bfloat16"


def _settings(size: Size, device: str, model: Path) -> Any:
    from agentfly_lib.configs import InferenceConfig
    from agentfly_lib.inference.settings import EngineSettings, engine_environment

    inference = InferenceConfig.model_validate(
        {"max_sequences": size.problems * size.chains, "dtype": _dtype(device), "gpu_memory_fraction": 0.5}
    )
    settings = EngineSettings(
        inference=inference,
        model_path=model,
        context_length=size.network["max_position_embeddings"],
        device="cpu" if device == "cpu" else "cuda",
    )
    os.environ.update(engine_environment(settings))
    return settings


async def _engine(size: Size, device: str, model: Path) -> Any:
    from benchmarks.engine import vllm_engine

    engine = vllm_engine(_settings(size, device, model))
    await engine.start()
    return engine


async def _pipeline(size: Size, device: str, folder: Path) -> dict[str, float]:
    """A collection, the second of two: the first one warms up."""
    from agentfly_lib.agents.build import build_agent
    from agentfly_lib.configs import HFAgentConfig, RolloutConfig
    from agentfly_lib.rollout import RolloutSeeds, collect
    from agentfly_lib.store.layout import StepDirectory
    from agentfly_lib.store.manifest import RolloutStore
    from agentfly_lib.store.shards import read_part
    from agentfly_lib.tools import tool
    from agentfly_lib.types import Problem

    @tool
    async def wait(kind: int) -> str:
        """Answers at once.

        Args:
            kind: Of waiting.
        """
        return "done"

    scripted = folder / "scripted"
    agent = build_agent(HFAgentConfig(max_turns=size.calls + 1), scripted, tools=[wait])
    engine = await _engine(size, device, scripted)
    found: dict[str, float] = {}
    for attempt in range(2):
        problems = [
            (str(number), Problem(id=str(number), messages=({"role": "user", "content": f"Task {attempt}, {number}"},)))
            for number in range(size.problems)
        ]
        step = StepDirectory(folder / f"step-{attempt}")
        step.path.mkdir()
        names = [name for name, _ in problems]
        store = RolloutStore.open(step, step=0, policy_version=0, group_ids=names, chains=size.chains)
        began = time.perf_counter()
        collected = await collect(
            agent,
            engine,
            problems,
            store,
            config=RolloutConfig(chains=size.chains, max_concurrency=size.problems * size.chains),
            seeds=RolloutSeeds(run_seed=0, step=0),
        )
        seconds = time.perf_counter() - began
        if collected.progress.failures:
            raise RuntimeError(f"chains failed: {collected.progress}")
        found = {"tokens": collected.progress.sampled_tokens, "seconds": seconds, "peak_gib": _peak_gib(device)}
    await engine.close()
    # What vLLM alone gets: the prompts of every turn, as the chains had them.
    turns: list[list[list[int]]] = [[] for _ in range(size.calls + 1)]
    for path in sorted((folder / "step-1").rglob("*.arrow")):
        for group in read_part(path):
            for trajectory in group.trajectories:
                segment = trajectory.segments[0]
                sampled = [turn for turn in segment.turns if turn.sampled]
                for place, turn in enumerate(sampled):
                    turns[place].append(segment.token_ids[: turn.start].tolist())
    (folder / "prompts.json").write_text(json.dumps(turns))
    return found


def _alone(size: Size, device: str, folder: Path) -> dict[str, float]:
    """vLLM, started as the pipeline starts it, on the same prompts: all chains' first turns, all second turns, ..."""
    settings = _settings(size, device, folder / "scripted")
    import torch
    from transformers import AutoTokenizer
    from vllm import RequestOutput, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from agentfly_lib.inference.settings import engine_arguments

    if device == "cpu":
        torch.set_num_threads(1)
    engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(settings)))
    stop = AutoTokenizer.from_pretrained(folder / "scripted").convert_tokens_to_ids("<|im_end|>")
    params = SamplingParams(temperature=1.0, max_tokens=1024, logprobs=0, detokenize=False, stop_token_ids=[stop])
    turns = json.loads((folder / "prompts.json").read_text())
    tokens, seconds = 0, 0.0
    for attempt in range(2):  # the first one warms up
        engine.reset_prefix_cache()
        tokens, began = 0, time.perf_counter()
        for turn, prompts in enumerate(turns):
            for number, ids in enumerate(prompts):
                engine.add_request(f"{attempt}/{turn}/{number}", {"prompt_token_ids": ids}, params)
            while engine.has_unfinished_requests():
                tokens += sum(
                    len(each.outputs[0].token_ids)
                    for each in engine.step()
                    if isinstance(each, RequestOutput) and each.finished
                )
        seconds = time.perf_counter() - began
    return {"tokens": tokens, "seconds": seconds}


def _update(size: Size, device: str, folder: Path) -> dict[str, float]:
    import torch

    from agentfly_lib.configs import RunConfig
    from agentfly_lib.refs import ModelRef
    from agentfly_lib.training.learner import LearnerRank

    config = RunConfig.model_validate(
        {
            "run": {"name": "gpu-bench"},
            "model": {"type": "tiny"},
            "data": {"type": "arithmetic"},
            "rollout": {"problems_per_step": size.trajectories // 8, "chains": 8},
            "optim": {"lr": 1e-6, "minibatches": 1},
            "learner": {
                "device": "cpu" if device == "cpu" else "cuda",
                "dtype": _dtype(device),
                "microbatch_tokens": size.microbatch_tokens,
            },
        }
    )
    learner = LearnerRank()
    model = ModelRef(path=folder / "random", fingerprint="random")
    learner.setup(rank=0, world=1, address="127.0.0.1", port=0, config=config, model=model)
    network = learner.engine.policy.model
    vocabulary = network.config.vocab_size
    seconds: list[float] = []
    groups: list[TrajectoryGroup] = []
    for step in range(3):  # the first one warms up
        groups = _groups(size, vocabulary=vocabulary, seed=step)
        _settle(learner.device)
        began = time.perf_counter()
        report = learner.update_from(groups, step)
        _settle(learner.device)
        seconds.append(time.perf_counter() - began)
        if report.metrics["train/skipped_updates/count"]:
            raise RuntimeError(f"step {step} was skipped: {report.metrics}")
    segments = [segment for group in groups for each in group.trajectories for segment in each.segments]
    shared = network.get_input_embeddings().weight
    body = sum(each.numel() for each in network.parameters() if each is not shared)
    found = {
        "seconds": min(seconds[1:]),
        "tokens": sum(len(segment) for segment in segments),
        "flops": model_flops(
            network.config,
            body=body,
            lengths=[len(segment) for segment in segments],
            trained=sum(int(segment.loss_mask.sum()) for segment in segments),
        ),
        "peak_gib": _peak_gib(device),
        "matmul_flops": _matmul_flops(size.matmul, learner.device, getattr(torch, _dtype(device))),
    }
    learner.close()
    return found


def _groups(size: Size, *, vocabulary: int, seed: int) -> list[TrajectoryGroup]:
    """The lengths of trajectories are spread by a third."""
    longest = size.trajectory_tokens
    return scored_groups(
        size.trajectories // 8, 8, shortest=2 * longest // 3, longest=longest, vocabulary=vocabulary, seed=seed
    )


def _matmul_flops(width: int, device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square product of random numbers, the best of ten."""
    import torch

    left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(13):
        _settle(device)
        began = time.perf_counter()
        torch.mm(left, right)
        _settle(device)
        best = min(best, time.perf_counter() - began)
    return 2 * width**3 / best


def _settle(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_gib(device: str) -> float:
    """Of this process: of the GPU's memory, or of the machine's where there is no GPU."""
    if device == "cpu":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    import torch

    return torch.cuda.max_memory_reserved() / 2**30


async def _weights(size: Size, device: str, folder: Path) -> dict[str, float]:
    """By shared memory, as a step does; the bound copies the same bytes off the GPU and onto it again."""
    import torch
    from safetensors.torch import load_file

    from agentfly_lib.training.weights import write_weights

    engine = await _engine(size, device, folder / "random")
    where = torch.device("cpu" if device == "cpu" else "cuda")
    weights = {name: each.to(where) for name, each in load_file(folder / "random" / "model.safetensors").items()}
    seconds, copies = [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        path = Path(shared) / "policy.safetensors"
        for version in range(1, 5):  # the first one warms up
            _settle(where)
            began = time.perf_counter()
            write_weights(path, weights, policy_version=version)
            await engine.load_weights(path, version, None)
            _settle(where)
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
            for each in weights.values():
                each.copy_(each.cpu().clone())
            _settle(where)
            copies.append(time.perf_counter() - began)
    await engine.close()
    return {"seconds": min(seconds[1:]), "ratio": min(seconds[1:]) / min(copies[1:])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="half-billion")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--part", choices=["models", *PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part is None:
        sys.exit(0 if main(asked.size, asked.device) else 1)
    part = {"models": _models, "alone": _alone, "pipeline": _pipeline, "update": _update, "weights": _weights}[
        asked.part
    ]
    answer = part(SIZES[asked.size], asked.device, asked.folder)
    print(json.dumps(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer))
