"""`ImageAgent`: an `HFAgent` for models that see."""

from __future__ import annotations

from agentfly_lib.agents.hf import HFAgent
from agentfly_lib.agents.problem_images import with_images_of
from agentfly_lib.types import Message, Problem

__all__ = ["ImageAgent"]


class ImageAgent(HFAgent):
    """Sees the pictures of a problem (columns `image` and `images`) before its text, and those that tools return.

    The tools `crop_image`, `zoom_image`, `rotate_image` and `draw_on_image` change them.
    """

    sees = True

    def build_messages(self, problem: Problem) -> list[Message]:
        """The first prompt's conversation, with pictures as content parts."""
        return with_images_of(problem, super().build_messages(problem))
