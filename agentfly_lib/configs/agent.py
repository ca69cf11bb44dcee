"""Which agent acts: its format, prompt, tools, reward and limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentfly_lib.configs.base import Config

__all__ = ["AgentConfig", "RewardConfig"]


class RewardConfig(Config):
    """How trajectories are scored."""

    name: str = "math_equal"
    """A reward we ship, or `package.module:name` of a function decorated with `@reward`."""
    timeout_seconds: PositiveFloat = 30.0
    """Limit for one trajectory; a reward that runs longer is killed and the trajectory is dropped, never given 0."""
    max_concurrency: PositiveInt = 64
    """Rewards in flight at the same time."""
    retries: Annotated[int, Field(ge=0)] = 1
    """Tries after the first when a reward raises."""


class AgentConfig(Config):
    """An agent, as a recipe names it."""

    type: Literal["hf"] = "hf"
    """`hf`: the model's own tool-call format (Hermes-style `<tool_call>`)."""
    template: str | None = None
    """Name of a template family; unset means the model's own chat template."""
    system_prompt: str | None = None
    tools: tuple[str, ...] = ("calculator",)
    """Tools we ship, or `package.module:name`."""
    reward: RewardConfig = RewardConfig()
    max_turns: PositiveInt = 3
    """Turns that the policy may take."""
    tool_timeout_seconds: PositiveFloat = 30.0
    """Limit of a tool call whose tool sets none of its own."""
    max_tool_chars: PositiveInt = 4096
    """Longer tool results are cut with a mark, where the tool sets no limit of its own."""
