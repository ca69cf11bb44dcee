"""What passes between a model and its tools: calls in, results out, and what a tool may know about its trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentfly_lib.chat.calls import MalformedCall, ToolCall
from agentfly_lib.resources.scope import ResourceScope
from agentfly_lib.types import Problem

__all__ = ["MalformedCall", "ToolCall", "ToolContext", "ToolResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What the model sees of a call, and what the rollout makes of it. A tool may return one itself."""

    observation: str
    finished: bool = False
    """Ends the trajectory."""
    env_reward: float | None = None
    """What the environment gave for this step."""
    error: str | None = None
    """Set if the call could not be executed or failed; `observation` tells the model then."""
    images: tuple[Any, ...] = ()
    """Each a text: an address, or a `data:` URL that holds the image. A tool may give the bytes of an image file, a PIL
    image or an array of pixels too, which are made such a URL."""
    answer: str | None = None
    """What a call that ends the trajectory gave as the answer. Of a tool that returns a plain value, that value."""

    @classmethod
    def refused(cls, message: str) -> ToolResult:
        """Of a call that was not done; the model is told why."""
        return cls(observation=f"Error: {message}", error=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The trajectory that a call belongs to. Given to a tool's parameter of this type, which models do not see."""

    trajectory_id: str
    group_id: str
    problem: Problem
    """Its dataset row; free columns are in `problem.columns`."""
    state: dict[str, Any] = field(default_factory=dict)
    """Belongs to this trajectory alone, and lives from its first call to its end."""
    resources: ResourceScope = field(default_factory=ResourceScope)
    """What this trajectory has opened: `context.resources[spec]` for the tool's own `needs`, `await
    context.resources.get(spec)` for anything else, `context.resources.at_end(closer)` to undo something. All of it is
    closed when the trajectory ends, however it ends."""
