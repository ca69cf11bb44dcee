"""First prompts, rendered once for all chains of a problem.

A template costs more than everything else that a chain does by itself, and the chains of a group begin alike, one after
another: remembering the last problem is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentfly_lib.chat import PictureBook, Prompt
from agentfly_lib.errors import EnvironmentFailure, ImageError
from agentfly_lib.rollout.agent import ChainAgent
from agentfly_lib.rollout.stages import Stage
from agentfly_lib.types import Message, Problem

__all__ = ["FirstPrompt", "FirstPrompts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPrompt:
    """How a chain begins."""

    messages: tuple[Message, ...]
    prompt: Prompt
    pictures: PictureBook


class FirstPrompts:
    """Renders the first prompts of one agent."""

    def __init__(self, agent: ChainAgent) -> None:
        self.schemas: list[dict[str, Any]] = agent.schemas
        """Tool schemas, the same in every prompt and bridge."""
        self._agent = agent
        self._last: tuple[Problem, FirstPrompt] | None = None

    def render(self, problem: Problem) -> FirstPrompt:
        """The conversation, its prompt and its pictures.

        Raises `EnvironmentFailure` for a picture that cannot be used.
        """
        if self._last is None or self._last[0] is not problem:
            self._last = problem, self._rendered(problem)
        return self._last[1]

    def _rendered(self, problem: Problem) -> FirstPrompt:
        pictures = PictureBook()
        try:
            messages, _ = pictures.take(self._agent.build_messages(problem))
            prompt = self._agent.chat.prompt(messages, self.schemas, pictures=pictures)
        except ImageError as error:
            raise EnvironmentFailure(f"problem {problem.id}: {error}", where=Stage.PROMPT) from error
        return FirstPrompt(messages=tuple(messages), prompt=prompt, pictures=pictures)
