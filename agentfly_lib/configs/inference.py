"""The engines that generate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentfly_lib.configs.base import Config

__all__ = ["InferenceConfig", "OpenAIConfig", "SamplingConfig", "TransformersConfig", "VllmEngineConfig"]


class SamplingConfig(Config):
    """How tokens are drawn, in every backend alike.

    Logits are changed in this order: `logit_bias`; stop tokens banned by `min_tokens`; `repetition_penalty`;
    `frequency_penalty` and `presence_penalty`; `temperature`; `min_p`; `top_k`; `top_p`. Training rollouts refuse all
    of these but the temperature, because the learner computes the log-probs of a policy without them.
    """

    temperature: PositiveFloat = 1.0
    """Logits are divided by it."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the likeliest tokens that together have this probability; 1 cuts nothing."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 keeps every token."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Leave out tokens less likely than this share of the likeliest one; 0 cuts nothing."""
    repetition_penalty: PositiveFloat = 1.0
    """Positive logits of tokens that are in the prompt or were sampled are divided by it, negative ones multiplied."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Taken from the logit of every token that was sampled."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Taken from a token's logit once for each time it was sampled."""
    min_tokens: NonNegativeInt = 0
    """So many tokens are sampled before one that ends the turn can be."""
    logit_bias: dict[NonNegativeInt, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    """Added to the logits of these tokens, by id."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a turn; the token that completes one of them is the last, and is kept."""

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
    """Of weights and activations."""
    tensor_parallel: PositiveInt = 1
    """GPUs of one engine."""
    max_sequences: PositiveInt = 128
    """Sequences that the engine decodes at the same time."""
    kv_cache_mib: PositiveInt = 64
    """Key-value cache on a CPU, MiB."""
    gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.45
    """Share of a GPU's memory that the engine may take."""
    start_timeout_seconds: PositiveFloat = 600.0
    """Limit for an engine to load its model and to be ready."""
    request_timeout_seconds: PositiveFloat = 600.0
    """Limit of one generated turn."""
    threads: PositiveInt = 1
    """CPU threads of an engine on a CPU."""


class InferenceConfig(VllmEngineConfig):
    """vLLM engines, each in its own Ray actor."""

    type: Literal["vllm"] = "vllm"
    replicas: PositiveInt = 1
    """Engines, among which requests are spread: a group's chains and their turns go to the same one if it has room."""
    placement: Literal["auto", "split", "colocated"] = "auto"
    """`split`: engines and learner have GPUs of their own. `colocated`: they share them, and the engines sleep while
    the learner computes. `auto` shares only where there are too few. On CPUs it means nothing."""
    weight_transfer: Literal["auto", "file", "nccl", "ipc"] = "auto"
    """How the learner's weights reach the engines. `file`: one safetensors file in shared memory. `nccl`: a broadcast
    from GPU to GPU (placement `split`). `ipc`: the learner's own memory, opened on the GPU that both share (placement
    `colocated`). `auto` is `file`."""
    lora_sync: Literal["merged", "adapter"] = "merged"
    """With `learner.lora`: engines get merged weights, or the adapters alone, megabytes that cost them some speed."""
    update_timeout_seconds: PositiveFloat = 600.0
    """Limit for an engine to load the learner's weights and to prove them, and for each way to and from sleep."""
    canary_tolerance: PositiveFloat = 1e-3
    """Largest mean difference of log-probs, engine against learner, after a weight update. bfloat16 needs about 0.1."""


class TransformersConfig(Config):
    """A model in this process, by `transformers`; for agents on their own."""

    device: str = "auto"
    """`cpu`, `cuda`, `mps`, or `auto`: a GPU if there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of weights and activations."""
    max_sequences: PositiveInt = 32
    """Sequences that are decoded at the same time."""
    request_timeout_seconds: PositiveFloat = 600.0
    """Limit of one generated turn, loading the model included."""


class OpenAIConfig(Config):
    """A server that speaks OpenAI's protocol (vLLM serve, SGLang, Ollama, llama.cpp); for agents on their own."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """Address of the server, up to and including `/v1`."""
    model: str | None = None
    """What the server calls the model; unset means the agent's model."""
    api: Literal["completions", "chat"] = "completions"
    """`completions` sends the prompt as the agent renders it; `chat` leaves that to the server."""
    tokens: Literal["auto", "ids", "text"] = "auto"
    """How `completions` sends a prompt: as token ids, as text, or as ids unless the server refuses them."""
    processed_logprobs: bool = False
    """The server's log-probs are those after temperature (vLLM: `--logprobs-mode processed_logprobs`). Otherwise those
    of a request with another temperature than 1, or a truncated distribution, are not used."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key, if the server wants one."""
    max_connections: PositiveInt = 256
    """Requests in flight at the same time."""
    request_timeout_seconds: PositiveFloat = 600.0
    """Limit of one generated turn, retries included."""
    connect_timeout_seconds: PositiveFloat = 10.0
    """Limit for reaching the server, each time."""
    retries: Annotated[int, Field(ge=0)] = 4
    """Tries after the first where the server is down, overloaded or breaks."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request's body."""
