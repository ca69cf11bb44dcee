"""The plan of a run: its parts on their devices, the arithmetic of a step, memory, and what does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentfly_lib.configs import RunConfig
from agentfly_lib.configs.model import ModelConfig
from agentfly_lib.errors import ConfigError, ModelError
from agentfly_lib.inference.placement import Placement, place, serves_adapters
from agentfly_lib.inference.settings import resolve_device
from agentfly_lib.planning.machine import Machine
from agentfly_lib.planning.memory import EngineMemory, RankMemory, engine_memory, rank_memory
from agentfly_lib.planning.shape import ModelShape

__all__ = ["Finding", "Placed", "Plan", "StepArithmetic", "plan_run"]

_COMFORTABLE = 0.9
"""Share of a device's memory above which a plan warns: estimates are no measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One process and what it claims."""

    kind: Literal["engine", "rank"]
    index: int
    device: Literal["cpu", "cuda"]
    gpus: tuple[int, ...] = ()
    """Which GPUs, counted as the plan fills them; Ray decides which card each one is."""
    shared: bool = False
    """Engines and ranks take turns on them."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArithmetic:
    """Of one training step; tokens are upper bounds, reached if every trajectory uses all it may."""

    trajectories: int
    per_minibatch: int
    per_rank: float
    """Trajectories; ranks that share rows have the same ones."""
    sampled_tokens: int
    trained_row_tokens: int
    """Tokens that go through the learner, prompts and tool results included."""
    microbatches_per_rank: int
    waves: float
    """How often the engines must fill all their seats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to know before the run is started."""

    level: Literal["warn", "fail"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of it; `fits` says whether it may be started."""

    machine: Machine
    shape: ModelShape | None
    placement: Placement
    placed: tuple[Placed, ...]
    rank: RankMemory | None
    engine: EngineMemory | None
    step: StepArithmetic
    findings: tuple[Finding, ...]

    @property
    def fails(self) -> bool:
        """Something is known not to fit."""
        return any(finding.level == "fail" for finding in self.findings)

    @property
    def fits(self) -> bool:
        """Nothing fails, and the memory of all devices was looked at."""
        on_gpu = any(part.device == "cuda" for part in self.placed)
        return not self.fails and self.rank is not None and (not on_gpu or self.machine.gpu_memory_bytes > 0)


def plan_run(config: RunConfig, machine: Machine, *, model: ModelConfig | None = None) -> Plan:
    """Works the plan out. Nothing is started, and of the model only `config.json` is read.

    model: whose size counts, if not that of the config's own.
    """
    findings: list[Finding] = []
    try:
        shape = ModelShape.of(model or config.model)
    except ModelError as error:
        shape = None
        findings.append(Finding(level="warn", text=f"memory is not estimated: {error}"))
    placement, placed = _place(config, machine, findings)
    on_gpu = {part.kind: part.device == "cuda" for part in placed}
    rank = engine = None
    if shape is not None and placed:
        rank = rank_memory(config, shape, on_gpu=on_gpu["rank"])
        engine = engine_memory(config, shape, gpu_memory_bytes=machine.gpu_memory_bytes if on_gpu["engine"] else 0)
        findings += _memory_findings(config, machine, placed, rank, engine)
    return Plan(
        machine=machine,
        shape=shape,
        placement=placement,
        placed=tuple(placed),
        rank=rank,
        engine=engine,
        step=_arithmetic(config),
        findings=tuple(findings),
    )


def _place(config: RunConfig, machine: Machine, findings: list[Finding]) -> tuple[Placement, list[Placed]]:
    learner, inference = config.learner, config.inference
    try:
        resolve_device(inference.device, machine.gpus)
        placement = place(config, machine.gpus)
    except ConfigError as error:
        findings.append(Finding(level="fail", text=str(error)))
        return Placement(kind="cpu"), []
    engines = [
        _placed("engine", index, placement.gpus_of_engine(index), shared=placement.sleeps)
        for index in range(inference.replicas)
    ]
    ranks = [
        _placed("rank", index, placement.gpus_of_rank(index), shared=placement.sleeps) for index in range(learner.ranks)
    ]
    used = {gpu for part in (*engines, *ranks) for gpu in part.gpus}
    if len(used) < machine.gpus:
        text = f"{machine.gpus - len(used)} of {machine.gpus} GPUs have nothing to do"
        findings.append(Finding(level="warn", text=text))
    threads = sum(learner.threads for part in ranks if part.device == "cpu")
    threads += sum(inference.threads for part in engines if part.device == "cpu")
    if threads > machine.cpus:
        text = f"{threads} threads of engines and ranks share {machine.cpus} processors"
        findings.append(Finding(level="warn", text=text))
    return placement, [*engines, *ranks]


def _placed(kind: Literal["engine", "rank"], index: int, gpus: tuple[int, ...], *, shared: bool) -> Placed:
    return Placed(kind=kind, index=index, device="cuda" if gpus else "cpu", gpus=gpus, shared=shared)


def _arithmetic(config: RunConfig) -> StepArithmetic:
    rollout, learner = config.rollout, config.learner
    trajectories = rollout.problems_per_step * rollout.chains
    row = min(rollout.context_length, rollout.max_prompt_tokens + rollout.max_sampled_tokens)
    per_minibatch = trajectories // config.optim.minibatches
    per_rank = per_minibatch / (learner.ranks // learner.sequence_parallel)
    in_one = max(learner.microbatch_tokens // row, 1)
    seats = config.inference.max_sequences * config.inference.replicas
    return StepArithmetic(
        trajectories=trajectories,
        per_minibatch=per_minibatch,
        per_rank=per_rank,
        sampled_tokens=trajectories * rollout.max_sampled_tokens,
        trained_row_tokens=trajectories * row,
        microbatches_per_rank=config.optim.minibatches * math.ceil(per_rank / in_one),
        waves=trajectories / min(seats, rollout.max_concurrency),
    )


def _memory_findings(
    config: RunConfig, machine: Machine, placed: list[Placed], rank: RankMemory, engine: EngineMemory
) -> list[Finding]:
    found: list[Finding] = []
    claims = [(part, rank.total if part.kind == "rank" else engine.total) for part in placed]
    kept = serves_adapters(config)  # other engines forget their weights when they sleep, for they are sent new ones
    engines = [part for part in placed if part.kind == "engine"]
    host = {
        "processes on the CPU": sum(size for part, size in claims if part.device == "cpu"),
        "what ranks offload": rank.host * (len(placed) - len(engines)),
        "copies for checkpoints and engines": rank.copies,
        "weights of sleeping engines": sum(engine.weights * len(part.gpus) * kept for part in engines if part.shared),
    }
    parts = ", ".join(name for name, size in host.items() if size)
    found += _check("this machine's memory", sum(host.values()), machine.memory_bytes, parts, host=True)
    if machine.gpu_memory_bytes:
        crowded = {gpu for part in placed if part.kind == "rank" for gpu in part.gpus}
        for part, size in claims:
            if part.device == "cuda":
                beside = _beside(part, rank, engine) if part.shared and crowded.intersection(part.gpus) else 0
                who = part.name if not beside else f"{part.name} and what stays beside it"
                where = f"GPU {', '.join(map(str, part.gpus))}"
                found += _check(where, size + beside, machine.gpu_memory_bytes, who)
    elif any(part.device == "cuda" for part in placed):
        found.append(Finding(level="warn", text="the memory of the GPUs is not known; name it (--gpu-memory-gib)"))
    cache_known = machine.gpu_memory_bytes or all(part.device == "cpu" for part in placed if part.kind == "engine")
    if cache_known and engine.cache_tokens < config.rollout.context_length:
        found.append(
            Finding(
                level="fail",
                text=f"the engine's cache holds {engine.cache_tokens} tokens, fewer than one trajectory of "
                f"rollout.context_length={config.rollout.context_length}; raise inference.gpu_memory_fraction, or "
                "inference.kv_cache_mib on a CPU",
            )
        )
    return found


def _beside(part: Placed, rank: RankMemory, engine: EngineMemory) -> int:
    """Bytes on a shared GPU that are not this part's while it works: a resting rank's, or a sleeping engine's."""
    return rank.resting + rank.shared if part.kind == "engine" else engine.context


def _check(where: str, size: int, room: int, who: str, *, host: bool = False) -> list[Finding]:
    used = f"{who} would take {size / 2**30:.1f} GiB of the {room / 2**30:.1f} GiB it has on {where}"
    remedy = "; lower learner.microbatch_tokens, raise learner.zero_stage or set learner.gradient_checkpointing"
    if host:
        remedy = (
            "; offload less (learner.offload), lower learner.microbatch_tokens of ranks on the CPU, train adapters "
            "(learner.lora), or use a machine with more memory"
        )
    if size > room:
        return [Finding(level="fail", text=used + remedy)]
    if size > _COMFORTABLE * room:
        return [Finding(level="warn", text=f"{used}, which leaves little for what an estimate misses")]
    return []
