"""What one chain may use up."""

from __future__ import annotations

from dataclasses import dataclass

from agentfly_lib.configs.run import RolloutConfig
from agentfly_lib.types import StopReason

__all__ = ["ChainLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLimits:
    """Limits of a chain on turns, tokens and time; each ends it with its own `StopReason`."""

    max_turns: int
    """Turns that the policy may sample. The calls of the last one are not run: nobody could answer their results."""
    max_turn_tokens: int
    """Tokens that the policy may sample in one turn."""
    max_sampled_tokens: int
    """Tokens that the policy may sample in the whole chain."""
    context_length: int
    """Tokens of one segment, prompt included."""
    timeout_seconds: float
    """Wall seconds from the first prompt to the end."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_turn_tokens", "max_sampled_tokens", "context_length", "timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")

    @classmethod
    def from_config(cls, config: RolloutConfig, *, max_turns: int) -> ChainLimits:
        """The limits of a recipe; `max_turns` is the agent's."""
        return cls(
            max_turns=max_turns,
            max_turn_tokens=config.max_turn_tokens,
            max_sampled_tokens=config.max_sampled_tokens,
            context_length=config.context_length,
            timeout_seconds=config.chain_timeout_seconds,
        )

    def room(self, *, prompt_tokens: int, sampled_tokens: int) -> int | StopReason:
        """Tokens that the next turn may sample, at least 1, or why it may not begin.

        `prompt_tokens` is the length of the real prompt, tool results included; `sampled_tokens` what the chain has
        sampled before.
        """
        context = self.context_length - prompt_tokens
        if context < 1:
            return StopReason.CONTEXT_FULL
        left = self.max_sampled_tokens - sampled_tokens
        if left < 1:
            return StopReason.MAX_TOKENS
        return min(context, left, self.max_turn_tokens)
