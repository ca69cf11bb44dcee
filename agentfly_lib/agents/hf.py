"""`HFAgent`: calls tools in the model's own format, as its chat template teaches it."""

from __future__ import annotations

from agentfly_lib.agents.agent import Agent
from agentfly_lib.chat import HermesParser, ParsedReply

__all__ = ["HFAgent"]


class HFAgent(Agent):
    """An agent around a Hugging Face model; the template shows it the tools."""

    def parse(self, text: str, truncated: bool) -> ParsedReply:
        """Takes a reply apart; `truncated` if a limit cut it."""
        return HermesParser().parse(text, truncated=truncated)
