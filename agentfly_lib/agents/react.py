"""`ReActAgent`: thinks, acts and answers in labelled lines, for models that know no tool-call format."""

from __future__ import annotations

from agentfly_lib.agents.text import TextAgent
from agentfly_lib.chat.calls import ParsedReply
from agentfly_lib.chat.react import ReActParser

__all__ = ["ReActAgent"]

_INSTRUCTIONS = """\
Solve the task step by step. You can use these tools:
{tools}

To use one, end your turn with these lines:
Thought: what you want to find out
Action: the name of one tool
Action Input: its arguments as a JSON object

You are then given an Observation. When you know the answer, write:
Thought: why you are done
Final Answer: the answer"""


class ReActAgent(TextAgent):
    """Thought, Action, Action Input; then an Observation; in the end Final Answer."""

    def instructions(self) -> str:
        """The format and the tools."""
        return _INSTRUCTIONS.format(tools=self.describe_tools() or "(none)")

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart."""
        return ReActParser().parse(text)

    def wrap(self, observation: str) -> str:
        """One result as the policy reads it."""
        return f"Observation: {observation}"
