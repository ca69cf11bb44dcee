"""The engines that generate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentfly_lib.configs.base import Config

__all__ = ["InferenceConfig", "OpenAIConfig", "SamplingConfig", "TransformersConfig", "VllmEngineConfig"]


class SamplingConfig(Config):
    """How tokens are sampled; the same in every backend.

    Logits are changed in this order: `logit_bias`; stop tokens banned by `min_tokens`; `repetition_penalty`;
    `frequency_penalty` and `presence_penalty`; `temperature`; `min_p`; `top_k`; `top_p`. Training rollouts refuse all
    of these except the temperature, because the learner computes the log-probs of a policy without them.
    """

    temperature: PositiveFloat = 1.0
    """Logits are divided by this."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens that together have this probability; 1 keeps every token."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample from this many of the likeliest tokens; 0 keeps every token."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Drop tokens whose probability is less than this share of the likeliest token's; 0 keeps every token."""
    repetition_penalty: PositiveFloat = 1.0
    """For tokens in the prompt or sampled before, positive logits are divided by this and negative ones multiplied."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Subtracted from the logit of every token that was sampled before."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Subtracted from a token's logit once for each time it was sampled."""
    min_tokens: NonNegativeInt = 0
    """Number of tokens to sample before a token may end the turn."""
    logit_bias: dict[NonNegativeInt, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    """Token ids, and what is added to their logits."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a turn. The token that completes one of them is kept, as the last of the turn."""

    @property
    def truncates(self) -> bool:
        """True if tokens are cut from the distribution, so that recorded log-probs are not the policy's."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def reshapes(self) -> bool:
        """True if logits are changed before the temperature, so that recorded log-probs are not the policy's."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.min_tokens
            or self.logit_bias
        )

    @property
    def altered(self) -> list[str]:
        """Names of what is set that makes the distribution another than the policy's at this temperature."""
        defaults = SamplingConfig()
        names = [name for name in SamplingConfig.model_fields if name not in ("temperature", "stop")]
        return [name for name in names if getattr(self, name) != getattr(defaults, name)]


class VllmEngineConfig(Config):
    """One vLLM engine."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engines run; `auto` takes GPUs if there are any."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of weights and activations."""
    tensor_parallel: PositiveInt = 1
    """Number of GPUs that each engine is spread over."""
    max_sequences: PositiveInt = 128
    """Maximum number of sequences that an engine decodes at the same time."""
    kv_cache_mib: PositiveInt = 64
    """Size of the key-value cache in MiB, on a CPU."""
    gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.45
    """Share of a GPU's memory that an engine may use."""
    start_timeout_seconds: PositiveFloat = 600.0
    """Time limit for an engine to load its model and become ready."""
    request_timeout_seconds: PositiveFloat = 600.0
    """Time limit for generating one turn."""
    threads: PositiveInt = 1
    """CPU threads of each engine, on a CPU."""


class InferenceConfig(VllmEngineConfig):
    """vLLM engines, each in its own Ray actor."""

    type: Literal["vllm"] = "vllm"
    replicas: PositiveInt = 1
    """Number of engines. A group's chains, and the turns of a chain, go to the same engine if it has room."""
    placement: Literal["auto", "split", "colocated"] = "auto"
    """`split`: engines and learner use separate GPUs. `colocated`: they share GPUs, and the engines sleep while the
    learner computes. `auto`: shared only if there are too few GPUs. Has no effect on CPUs."""
    weight_transfer: Literal["auto", "file", "nccl", "ipc"] = "auto"
    """How the learner's weights reach the engines. `file`: one safetensors file in shared memory. `nccl`: a broadcast
    from GPU to GPU (placement `split`). `ipc`: each engine opens the learner's memory on the GPU that they share
    (placement `colocated`). `auto` means `file`."""
    lora_sync: Literal["merged", "adapter"] = "merged"
    """With `learner.lora`: send the merged weights to the engines, or only the adapters. Adapters are a few megabytes,
    but make the engines somewhat slower."""
    update_timeout_seconds: PositiveFloat = 600.0
    """Time limit for an engine to load new weights and pass the check of them, and to fall asleep or wake up."""
    canary_tolerance: PositiveFloat = 1e-3
    """Largest allowed mean difference of log-probs between engine and learner after a weight update. bfloat16 needs
    about 0.1."""


class TransformersConfig(Config):
    """A model in this process, with `transformers`; for agents outside of training."""

    device: str = "auto"
    """`cpu`, `cuda`, `mps`, or `auto`: a GPU if there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of weights and activations."""
    max_sequences: PositiveInt = 32
    """Maximum number of sequences decoded at the same time."""
    request_timeout_seconds: PositiveFloat = 600.0
    """Time limit for generating one turn, loading of the model included."""


class OpenAIConfig(Config):
    """A server with OpenAI's API (vLLM serve, SGLang, Ollama, llama.cpp); for agents outside of training."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """Address of the server, up to and including `/v1`."""
    model: str | None = None
    """Name of the model on the server; unset means the agent's model."""
    api: Literal["completions", "chat"] = "completions"
    """`completions` sends the prompt as the agent renders it; `chat` lets the server render it."""
    tokens: Literal["auto", "ids", "text"] = "auto"
    """How `completions` sends a prompt: as token ids, as text, or (`auto`) as ids unless the server refuses them."""
    processed_logprobs: bool = False
    """Whether the server returns log-probs after temperature (vLLM: `--logprobs-mode processed_logprobs`). If not, the
    log-probs of requests with a temperature other than 1, or with a truncated distribution, are not used."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key, if the server needs one."""
    max_connections: PositiveInt = 256
    """Maximum number of requests in flight."""
    request_timeout_seconds: PositiveFloat = 600.0
    """Time limit for generating one turn, retries included."""
    connect_timeout_seconds: PositiveFloat = 10.0
    """Time limit for each attempt to connect to the server."""
    retries: Annotated[int, Field(ge=0)] = 4
    """Further attempts if the server is down, overloaded or fails."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields for the body of every request."""
