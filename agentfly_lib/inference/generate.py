"""The one thing a rollout asks of a model: token ids in, sampled token ids and their log-probs out.

`Generate` is a small protocol, so that a chain runs alike on a vLLM engine behind Ray (`RayGenerate`), on one in the
same process (`VllmEngine`), and on a scripted policy in tests (`ScriptedGenerate`). All engines here are a
`GenerateStream` too: they tell of tokens while they sample them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agentfly_lib.configs.inference import SamplingConfig
from agentfly_lib.types import FinishReason, Message

__all__ = ["Delta", "Generate", "GenerateStream", "Generation", "GenerationRequest"]

Delta = Sequence[int] | str
"""New tokens; or new text, from a server of which nothing else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One turn to sample."""

    request_id: str
    """Names the request in logs and errors; need not be unique (a retry may reuse it)."""
    token_ids: Sequence[int]  # [P]
    """The whole prompt, earlier turns included. Never empty."""
    max_tokens: int
    """Largest number of tokens to sample, at least 1."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int | None = None
    """Seed of this request alone (63 bits): the same request with the same seed gives the same tokens, whatever else
    is in flight. None draws from the engine's own generator."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends with any of these; the one that was sampled is kept as the last token of the generation. Texts that
    end it too are in `sampling.stop`."""
    priority: int = 0
    """Of requests that wait for a place in the engine, those with the smallest number go first, then by arrival."""
    greedy: bool = False
    """Take the most probable token each time, after penalties and biases. Temperature, top-p, top-k, min-p and `seed`
    are then ignored: the log-probs are those at temperature 1."""
    messages: Sequence[Message] = ()
    """The conversation that `token_ids` renders, for servers that take nothing else; empty where nobody knows it."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the tools in that prompt."""
    images: Sequence[bytes] = ()
    """Encoded pictures, in the order of their placeholders in `token_ids`, which are there already, one for each
    feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was sampled."""

    token_ids: list[int]  # [S]  includes the stop token that was sampled, if one was
    logprobs: list[
        float
    ]  # [S]  of each sampled token, under the distribution it was drawn from (penalties, temperature)
    finish: FinishReason
    """`STOP` after a stop token or text, `LENGTH` at `max_tokens` or at the end of the engine's context."""
    policy_version: int
    """Version of the weights that sampled the first token."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were found in the engine's prefix cache."""
    seconds: float = 0.0
    """Wall seconds from the request to its end, in the engine's process."""
    exact: bool = True
    """False if the ids are not known to be those that were sampled (text encoded again), or their log-probs are not:
    the trajectory is then unfit for training."""
    versions: Sequence[int] = ()  # [S]
    """Version of the weights that sampled each token, never falling; not given, `policy_version` sampled them all."""

    def __post_init__(self) -> None:
        if not self.versions:
            object.__setattr__(self, "versions", [self.policy_version] * len(self.token_ids))


class Generate(Protocol):
    """Samples one turn."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn for `request`.

        Cancelling the awaiting task aborts the request in the engine.

        Raises:
            EngineError: the engine is dead or gone, so no request can be served; whoever collects must end, and go on
                with a new engine.
            InfrastructureError: this request failed where others may not, for one because it took longer than its
                time limit (`where="generate"`); the chain may be retried.
            ValueError: the request cannot be served as it is (an empty prompt, `max_tokens` below 1, a prompt that
                leaves no room in the engine's context).
        """
        ...


@runtime_checkable
class GenerateStream(Generate, Protocol):
    """An engine that can also tell of tokens while it samples them."""

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """As `generate`, with the same result; what is sampled is told to `on_delta` as it comes.

        It is called in the event loop of the caller, and never after this returned or raised. Of a generation that is
        exact, it was given every sampled token once, in order. What it raises ends the request, and is raised here.
        """
        ...
