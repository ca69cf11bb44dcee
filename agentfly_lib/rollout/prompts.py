"""First prompts, rendered once for all chains of a problem.

A template costs more than everything else that a chain does by itself, and the chains of a group begin alike, one after
another: remembering the last problem is enough.
"""

from __future__ import annotations

from typing import Any

from agentfly_lib.rollout.agent import ChainAgent
from agentfly_lib.types import Message, Problem

__all__ = ["FirstPrompts"]


class FirstPrompts:
    """Renders the first prompts of one agent."""

    def __init__(self, agent: ChainAgent) -> None:
        self.schemas: list[dict[str, Any]] = agent.schemas
        """Tool schemas, the same in every prompt and bridge."""
        self._agent = agent
        self._last: tuple[Problem, tuple[Message, ...], list[int]] | None = None

    def render(self, problem: Problem) -> tuple[list[Message], list[int]]:
        """The conversation (a list of the caller's own) and the ids of its prompt."""
        if self._last is None or self._last[0] is not problem:
            messages = tuple(self._agent.build_messages(problem))
            self._last = problem, messages, self._agent.chat.prompt_ids(messages, self.schemas)
        _, messages, ids = self._last
        return list(messages), ids
