"""Memory of one learner rank and of one engine, by what it is for. Estimates: measured on small models, see the tests.

Of a rank (ZeRO: arXiv 1910.02054; activations: counted as autograd keeps them for a decoder with a gated MLP):

    weights       P x bytes            / ranks at stage 3, where up to a billion of them are also there whole
    gradients     T x 4                / ranks from stage 2; T is P, or what adapters have where those are trained.
                  In bfloat16 they are summed in float32 from stage 1 on: at stage 0 T x 2, at stage 1 T x (2 + 4)
    bucket        of gradients on their way between ranks: up to half a billion of them
    optimizer     T x (8, and 4 more for the float32 copy that DeepSpeed keeps)  / ranks from stage 1
    step          T x 4                / ranks from stage 1: gradients in float32 once more, when activations are gone
    activations   tokens x layers x (7 hidden + 3 key_value + 5 intermediate), or, with checkpointing, tokens x layers x
                  hidden and those of one layer; and tokens x 2 hidden around the last norm
    logits        loss tokens of one chunk x vocabulary x 4 bytes, twice, or three times with a bonus for entropy; and
                  the gradient of the head, if it is trained: vocabulary x hidden x 4 bytes, and once more if rounded
    reference     P x bytes on every rank, whatever the stage, if a KL penalty measures against a second model

Layers of four bits a weight (QLoRA) take about 0.53 bytes each. Ranks that share rows share activations. What is
offloaded from a GPU is counted in the host's memory, and so are copies: of the learner's state while a checkpoint is
written, and of the weights in the file that engines read.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from agentfly_lib.configs import RunConfig
from agentfly_lib.planning.shape import ModelShape

__all__ = ["EngineMemory", "RankMemory", "engine_memory", "rank_memory"]

_BYTES = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
_NF4_BYTES = 0.53
"""Of a weight of four bits, with its share of the scales (arXiv 2305.14314, section 3)."""
_LIVE_PARAMETERS = 10**9
"""That DeepSpeed keeps whole at stage 3 while it computes, at most, and in a buffer of what it reads from a disk."""
_REDUCE_BUCKET = 500_000_000
"""As in `training.engine`."""
_CONTEXT_BYTES = 1 << 30
"""What CUDA, NCCL and kernels take on a GPU before anything is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes, on the device where it computes but for the last two."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    reference: int
    bucket: int
    gathered: int
    """Weights that are whole while they are needed, at stage 3."""
    step: int
    context: int
    shared: int
    """Copies of weights while engines read them (`weight_transfer = "ipc"`)."""
    host: int
    """In the host's memory, if the rank is on a GPU: what is offloaded."""
    copies: int
    """In the host's memory, of all ranks together."""

    @property
    def total(self) -> int:
        return self.resting + self.gathered + max(self.activations + self.logits, self.step)

    @property
    def resting(self) -> int:
        """What stays while it computes nothing."""
        return self.weights + self.gradients + self.optimizer + self.reference + self.bucket + self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes of one device of an engine, and how much text its cache holds."""

    weights: int
    cache: int
    context: int
    cache_tokens: int
    """Tokens whose keys and values fit into the whole engine's cache."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.context


def rank_memory(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> RankMemory:
    """Of each rank, at its peak: the backward pass of a full micro-batch."""
    learner = config.learner
    width, ranks, stage = _BYTES[learner.dtype], learner.ranks, learner.zero_stage
    tokens = max(learner.microbatch_tokens, config.rollout.context_length) // learner.sequence_parallel
    layer = tokens * (7 * shape.hidden + 3 * shape.key_value + 5 * shape.intermediate) * width
    activations = 2 * tokens * shape.hidden * width
    if learner.gradient_checkpointing:
        activations += tokens * shape.layers * shape.hidden * width + layer
    else:
        activations += shape.layers * layer
    trained, lora, offload = _trained(config, shape), learner.lora, learner.offload
    share = trained // (ranks if stage else 1)
    """Of the optimizer's part, which lies on the host if it is offloaded."""
    away = on_gpu and offload.optimizer != "none"
    weights = (shape.parameters + (trained if lora else 0)) * width // (ranks if stage == 3 else 1)
    if lora is not None and lora.quantize:
        weights -= int(shape.linear_parameters * (width - _NF4_BYTES))
    gradients = {
        0: trained * width,
        1: trained * (4 if away or width == 4 else 2 + 4) + (4 * share if away and width == 2 else 0),
        2: 4 * share,
        3: 0 if away else 4 * share,
    }[stage]
    logits = (3 if config.algorithm.entropy_coefficient else 2) * 4 * shape.vocabulary
    logits *= min(learner.logit_chunk_tokens, tokens)
    if lora is None:
        logits += shape.vocabulary * shape.hidden * (4 if width == 4 else 4 + width)
    merged = shape.linear_parameters if lora is not None else 0  # which lie nowhere else
    return RankMemory(
        weights=0 if on_gpu and offload.parameters != "none" else weights,
        gradients=gradients,
        optimizer=0 if away else share * _optimizer_bytes(config),
        activations=activations,
        logits=logits,
        reference=shape.parameters * width if config.algorithm.kl.coefficient and lora is None else 0,
        bucket=min(trained, _REDUCE_BUCKET) * (4 if stage == 1 else width),
        gathered=min(shape.parameters, _LIVE_PARAMETERS) * width if stage == 3 else 0,
        step=0 if away or (width == 4 and not stage) else 4 * share,
        context=_CONTEXT_BYTES if on_gpu else 0,
        shared=(shape.parameters if stage == 3 else merged) * width * (config.inference.weight_transfer == "ipc"),
        host=_offloaded(config, shape) if on_gpu else 0,
        copies=_copies(config, shape, on_gpu=on_gpu),
    )


def _copies(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> int:
    """Of what a checkpoint holds, while it is written, and of the weights for engines."""
    learner = config.learner
    width, trained = _BYTES[learner.dtype], _trained(config, shape)
    whole = shape.parameters * width
    file = whole if config.inference.weight_transfer in ("auto", "file") else 0
    return trained * (_optimizer_bytes(config) + width) + whole * (2 if on_gpu else 1) + file


def _trained(config: RunConfig, shape: ModelShape) -> int:
    """How many parameters are trained."""
    learner, lora = config.learner, config.learner.lora
    if lora is not None:
        return shape.adapter_parameters(lora.rank, lora.target_modules, vision=lora.vision)
    return shape.parameters - (shape.tower if learner.freeze_vision else 0)


def _optimizer_bytes(config: RunConfig) -> int:
    """Of a trained parameter, in the optimizer."""
    return 12 if config.learner.dtype != "float32" or config.learner.zero_stage else 8


def _offloaded(config: RunConfig, shape: ModelShape) -> int:
    """Bytes in the host's memory of what one rank keeps off its GPU; of what is on a disk, buffers."""
    learner, offload = config.learner, config.learner.offload
    width, ranks = _BYTES[learner.dtype], learner.ranks
    share, part = _trained(config, shape) // ranks, shape.parameters // ranks
    optimizer = {
        "none": 0,
        "cpu": share * (_optimizer_bytes(config) + 4 + 4),  # gradients, and their sums over micro-batches
        "nvme": 4 * 4 * min(share, _LIVE_PARAMETERS) + 4 * share,  # four buffers, and the sums
    }
    largest = shape.vocabulary * shape.hidden // ranks
    weights = {
        "none": 0,
        "cpu": part * width,
        "nvme": (min(part, _LIVE_PARAMETERS) + 5 * largest) * width,  # of five buffers each holds the largest
    }
    return optimizer[offload.optimizer] + weights[offload.parameters]


def engine_memory(config: RunConfig, shape: ModelShape, *, gpu_memory_bytes: int) -> EngineMemory:
    """Of each device of an engine; `gpu_memory_bytes` is 0 on a CPU."""
    inference = config.inference
    width, devices = _BYTES[inference.dtype], inference.tensor_parallel
    weights = shape.parameters * width // devices
    if gpu_memory_bytes:
        context = _CONTEXT_BYTES
        cache = max(int(gpu_memory_bytes * inference.gpu_memory_fraction) - weights - context, 0)
    else:
        context, cache = 0, inference.kv_cache_mib * 2**20
    per_token = 2 * shape.layers * shape.key_value * width
    return EngineMemory(weights=weights, cache=cache, context=context, cache_tokens=cache * devices // per_token)
