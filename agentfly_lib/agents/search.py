"""`SearchAgent`: asks a search engine between tags and answers between tags."""

from __future__ import annotations

import re
from functools import cached_property

from agentfly_lib.agents.text import TextAgent
from agentfly_lib.chat.calls import ParsedReply
from agentfly_lib.chat.search_tags import SearchTagParser

__all__ = ["SearchAgent"]

_INSTRUCTIONS = """\
Answer the question. Think first, inside <think> and </think>. If you lack knowledge, search with
<search>your query</search> and end your turn; the results are given to you between <information> and </information>.
You may search several times. When you know the answer, write only the answer itself inside <answer> and </answer>,
for example <answer>Beijing</answer>."""
_TAG = re.compile(r"<(?=/?information>)")


class SearchAgent(TextAgent):
    """Its only tool is the search: the one named `web_search`, or the one that it was given."""

    default_tools = ("web_search",)

    @cached_property
    def _parser(self) -> SearchTagParser:
        tool, argument = self.only_tool("web_search")
        return SearchTagParser(tool=tool, argument=argument)

    def check(self) -> None:
        """Raises `ConfigError` if it is not clear which tool searches."""
        _ = self._parser

    def instructions(self) -> str:
        """The format."""
        return _INSTRUCTIONS

    def parse(self, text: str, truncated: bool) -> ParsedReply:
        """Takes a reply apart; `truncated` if a limit cut it."""
        return self._parser.parse(text, truncated=truncated)

    def wrap(self, observation: str) -> str:
        """One result as the policy reads it. A page that spells the tag cannot end it."""
        return f"<information>\n{_TAG.sub('< ', observation)}\n</information>"
