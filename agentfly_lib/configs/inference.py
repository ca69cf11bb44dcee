"""The engines that generate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentfly_lib.configs.base import Config

__all__ = ["InferenceConfig", "OpenAIConfig", "SamplingConfig", "TransformersConfig"]


class SamplingConfig(Config):
    """How tokens are drawn. Training rollouts refuse truncated distributions (top-p, top-k, min-p)."""

    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 keeps every token."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def truncates(self) -> bool:
        """True if tokens are cut from the distribution, so that recorded log-probs are not the policy's."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


class InferenceConfig(Config):
    """vLLM engines, each in its own Ray actor."""

    type: Literal["vllm"] = "vllm"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    replicas: Annotated[int, Field(ge=1, le=1)] = 1
    """Engines. One is supported now."""
    tensor_parallel: PositiveInt = 1
    """GPUs of one engine."""
    max_sequences: PositiveInt = 128
    """Sequences that the engine decodes at the same time."""
    kv_cache_mib: PositiveInt = 64
    """Key-value cache on a CPU, MiB."""
    gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.45
    """Share of a GPU's memory that the engine may take."""
    start_timeout_seconds: PositiveFloat = 600.0
    request_timeout_seconds: PositiveFloat = 600.0
    """Limit of one generated turn."""
    canary_tolerance: PositiveFloat = 1e-3
    """Largest mean difference of log-probs, engine against learner, after a weight update. bfloat16 needs about 0.1."""
    threads: PositiveInt = 1
    """CPU threads of an engine on a CPU."""


class TransformersConfig(Config):
    """A model in this process, by `transformers`; for agents on their own."""

    device: str = "auto"
    """`cpu`, `cuda`, `mps`, or `auto`: a GPU if there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_sequences: PositiveInt = 32
    """Sequences that are decoded at the same time."""
    request_timeout_seconds: PositiveFloat = 600.0
    """Limit of one generated turn, loading the model included."""


class OpenAIConfig(Config):
    """A server that speaks OpenAI's protocol (vLLM serve, SGLang, Ollama, llama.cpp); for agents on their own."""

    base_url: str = "http://127.0.0.1:8000/v1"
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
    retries: Annotated[int, Field(ge=0)] = 4
    """Tries after the first where the server is down, overloaded or breaks."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request's body."""
