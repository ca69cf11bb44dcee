"""`SearchAgent`: asks a search engine between tags and answers between tags."""

from __future__ import annotations

import re

from agentfly_lib.agents.one_tool import OneToolAgent
from agentfly_lib.chat.search_tags import SearchTagParser

__all__ = ["SearchAgent"]

_INSTRUCTIONS = """\
Answer the question. Think first, inside <think> and </think>. If you lack knowledge, search with
<search>your query</search> and end your turn; the results are given to you between <information> and </information>.
You may search several times. When you know the answer, write only the answer itself inside <answer> and </answer>,
for example <answer>Beijing</answer>."""
_TAG = re.compile(r"<(?=/?information>)")


class SearchAgent(OneToolAgent):
    """Its only tool is the search: the one named `web_search`, or the one that it was given."""

    default_tools = ("web_search",)
    tool_name = "web_search"

    def make_parser(self, tool: str, argument: str) -> SearchTagParser:
        """What takes replies apart."""
        return SearchTagParser(tool=tool, argument=argument)

    def instructions(self) -> str:
        """The format."""
        return _INSTRUCTIONS

    def wrap(self, observation: str) -> str:
        """One result as the policy reads it. A page that spells the tag cannot end it."""
        return f"<information>\n{_TAG.sub('< ', observation)}\n</information>"
