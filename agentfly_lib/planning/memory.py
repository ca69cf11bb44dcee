"""Memory of one learner rank and of one engine, by what it is for. Estimates: measured on small models, see the tests.

Of a rank (ZeRO: arXiv 1910.02054; activations: counted as autograd keeps them for a decoder with a gated MLP):

    weights       P x bytes            / ranks at stage 3
    gradients     T x bytes            / ranks from stage 2; T is P, or what adapters have where those are trained.
                  In bfloat16 at stage 1, 4 bytes more for sums in float32, unless the optimizer is offloaded
    optimizer     T x (8, and 4 more for the float32 copy that DeepSpeed keeps)  / ranks from stage 1
    activations   tokens x layers x (7 hidden + 3 key_value + 5 intermediate), or, with checkpointing, tokens x layers x
                  hidden and those of one layer; and tokens x 2 hidden around the last norm
    logits        loss tokens of one chunk x vocabulary x 4 bytes, twice, or three times with a bonus for entropy; and
                  the gradient of the head, if it is trained: vocabulary x hidden x 4 bytes, and once more if rounded
    reference     P x bytes on every rank, whatever the stage, if a KL penalty measures against a second model

Layers of four bits a weight (QLoRA) take about 0.53 bytes each. What is offloaded to the host is not counted on a GPU;
where parameters are, weights are those of one layer. Ranks that share rows share activations.
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
_CONTEXT_BYTES = 1 << 30
"""What CUDA, NCCL and kernels take on a GPU before anything is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    reference: int
    context: int

    @property
    def total(self) -> int:
        return self.resting + self.activations + self.logits

    @property
    def resting(self) -> int:
        """What stays while it computes nothing."""
        return self.weights + self.gradients + self.optimizer + self.reference + self.context


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
    trained, lora = shape.parameters - (shape.tower if learner.freeze_vision else 0), learner.lora
    if lora is not None:
        trained = shape.adapter_parameters(lora.rank, lora.target_modules, vision=lora.vision)
    weights = (shape.parameters + (trained if lora else 0)) * width // (ranks if stage == 3 else 1)
    if lora is not None and lora.quantize:
        weights -= int(shape.linear_parameters * (width - _NF4_BYTES))
    if on_gpu and learner.offload.parameters != "none":
        weights = shape.parameters * width // shape.layers
    gradients = trained * width // (ranks if stage >= 2 else 1)
    if stage == 1 and learner.dtype == "bfloat16" and learner.offload.optimizer == "none":
        gradients += 4 * trained
    logits = (3 if config.algorithm.entropy_coefficient else 2) * 4 * shape.vocabulary
    logits *= min(learner.logit_chunk_tokens, tokens)
    if lora is None:
        logits += shape.vocabulary * shape.hidden * (4 if width == 4 else 4 + width)
    copies = 12 if learner.dtype != "float32" or stage else 8
    return RankMemory(
        weights=weights,
        gradients=gradients,
        optimizer=0 if on_gpu and learner.offload.optimizer != "none" else trained * copies // (ranks if stage else 1),
        activations=activations,
        logits=logits,
        reference=shape.parameters * width if config.algorithm.kl.coefficient and lora is None else 0,
        context=_CONTEXT_BYTES if on_gpu else 0,
    )


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
