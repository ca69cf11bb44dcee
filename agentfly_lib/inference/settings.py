"""What an engine is started with: our config in, vLLM's arguments and the environment of its process out.

Pure functions: nothing is imported from vLLM and nothing is changed. Whoever owns the engine's process applies
`engine_environment` before vLLM is imported there (`EngineServer` does).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentfly_lib.chat.image_reader import reads, sees
from agentfly_lib.configs.inference import VllmEngineConfig
from agentfly_lib.errors import ConfigError

__all__ = ["Device", "EngineSettings", "engine_arguments", "engine_environment", "resolve_device"]

Device = Literal["cpu", "cuda"]

_LORA_RANKS = (8, 16, 32, 64, 128, 256)
"""What vLLM has room for."""


_BANS = "agentfly_lib.inference.banned:BannedTokens"
_BLIND: dict[str, Any] = {"language_model_only": True, "skip_tokenizer_init": False, "logits_processors": [_BANS]}
"""What a model needs besides that sees in a way that is not known here."""
_SEEING: dict[str, Any] = {
    # Pictures come with their ids expanded and their pixels made, so nothing is left for vLLM's own processor to do.
    "limit_mm_per_prompt": {"image": 999, "video": 0},
    "mm_processor_cache_gb": 0,
    "mm_device_do_normalize": False,
    "skip_mm_profiling": True,
    "skip_tokenizer_init": False,  # which its processor insists on
    "logits_processors": [_BANS],
}
"""What a model needs besides whose pictures are read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine. Two engines of equal `digest` were started alike from the same model; only the version may differ."""

    inference: VllmEngineConfig
    model_path: Path
    """Directory with `config.json` and the safetensors weights that are served first."""
    context_length: int
    """Longest sequence, prompt and sampled tokens together."""
    device: Device
    model_fingerprint: str = ""
    """Hash of the model's files (`ModelRef.fingerprint`); empty where nobody looks for the engine again."""
    policy_version: int = 0
    """Version of the weights in `model_path`."""
    transfer: str = "file"
    """`file`, or the name of vLLM's weight transfer engine."""
    lora_rank: int = 0
    """Largest rank of adapters that it must serve; 0 for none."""
    canary_tolerance: float = 1e-3
    """See `InferenceConfig`."""
    sleeps: bool = False
    """It must be able to give its GPU memory back and take it again (`VllmEngine.sleep`)."""

    @property
    def digest(self) -> str:
        """Hash of everything but the version: an engine that began with another model is another engine."""
        shape = (self.model_path / "config.json").read_bytes()
        parts = (self.context_length, self.device, self.model_fingerprint, self.sleeps, self.transfer, self.lora_rank)
        key = " ".join([self.inference.model_dump_json(), *map(str, parts)])
        return hashlib.sha256(key.encode() + b"\0" + shape).hexdigest()


def resolve_device(asked: Literal["auto", "cpu", "cuda"], gpus: int) -> Device:
    """The device of an engine where `gpus` GPUs can be had; `auto` takes a GPU if there is one.

    Raises:
        ConfigError: `cuda` is asked for and there is no GPU.
    """
    if asked == "cuda" and gpus == 0:
        raise ConfigError(
            "inference.device='cuda', but no GPU is visible here; use 'auto' or 'cpu', or check nvidia-smi"
        )
    if asked == "auto":
        return "cuda" if gpus else "cpu"
    return asked


def engine_environment(settings: EngineSettings) -> dict[str, str]:
    """Variables that must be set in the engine's process before vLLM is imported."""
    common = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core shares our thread: half the memory and start-up time
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # An engine lives on one machine: whatever its processes say to each other stays on the loopback interface.
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the runner that the CPU build has too, so that one path is tested
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.device == "cuda":
        if settings.transfer == "nccl":  # the learner may be on another machine
            del common["NCCL_SOCKET_IFNAME"]
        return common
    return common | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.inference.threads),
        # vLLM compiles one helper of the sampler even in eager mode: seconds at the first request, for nothing here.
        "TORCH_COMPILE_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def engine_arguments(settings: EngineSettings) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`."""
    inference, cpu = settings.inference, settings.device == "cpu"
    arguments: dict[str, Any] = {
        "model": str(settings.model_path),
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "generation_config": "vllm",  # a model's own sampling defaults must not leak into ours
        "load_format": "safetensors",
        "dtype": inference.dtype,
        "max_model_len": settings.context_length,
        "max_num_seqs": inference.max_sequences,
        "tensor_parallel_size": inference.tensor_parallel,
        "distributed_executor_backend": "uni" if inference.tensor_parallel == 1 else "mp",
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # of the distribution that was sampled, after temperature
        "worker_extension_cls": "agentfly_lib.inference.worker.WeightLoading",
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "seed": 0,
    }
    if sees(settings.model_path):
        arguments |= _SEEING if reads(settings.model_path) else _BLIND
    if settings.transfer != "file":
        arguments["weight_transfer_config"] = {"backend": settings.transfer}
    if settings.lora_rank:
        rank = next((size for size in _LORA_RANKS if size >= settings.lora_rank), settings.lora_rank)
        arguments |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
    if not cpu:
        return arguments | {
            "gpu_memory_utilization": inference.gpu_memory_fraction,
            "enable_sleep_mode": settings.sleeps,
        }
    return arguments | {
        "enforce_eager": True,
        "block_size": 32,  # the smallest; the default of 128 never hits the prefix cache on short prompts
        "kv_cache_memory_bytes": inference.kv_cache_mib * 2**20,
        # A prefill in pieces needs generators that can be rewound, which a CPU has not: seeded requests would fail.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(settings.context_length, 16384),
        "async_scheduling": False,
    }
