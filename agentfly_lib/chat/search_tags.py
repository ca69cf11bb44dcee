"""Questions to a search engine between tags, as Search-R1 trains them (Jin et al., arXiv 2503.09516):

    <think>Who wrote it?</think> <search>author of Dune</search>
    <think>Herbert.</think> <answer>Frank Herbert</answer>

All searches of a reply are run. An answer ends the chain if it comes before any search; one that comes after was
written without having seen the results, so it is not taken and the policy is told. A reply without either is told too.
"""

from __future__ import annotations

from dataclasses import dataclass

import regex

from agentfly_lib.chat.blocks import after_reasoning
from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall

__all__ = ["SearchTagParser"]

_OPENING = regex.compile(r"<(search|answer)>")
_END = regex.compile(r"</(search|answer)>|<(?:search|answer)>")
_FORMAT = "write <search>query</search> to search, or <answer>answer</answer> to finish."


@dataclass(frozen=True, slots=True)
class SearchTagParser:
    """Finds `<search>` and `<answer>` in a reply."""

    tool: str = "web_search"
    """Name of the tool that searches."""
    argument: str = "query"
    """Its parameter for the question."""

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart; the content is the answer if there is one, else the text outside the tags."""
        position = after_reasoning(text, _OPENING)
        outside, calls = [text[:position]], list[ToolCall | MalformedCall]()
        while (opening := _OPENING.search(text, position)) is not None:
            outside.append(text[position : opening.start()])
            kind, (body, position, closed) = opening[1], _body(text, opening)
            if kind == "answer" and closed and not calls:
                return ParsedReply(content=body)
            calls.append(self._call(len(calls), body, self._fault(kind, body, closed)))
        outside.append(text[position:])
        content = "".join(outside).strip()
        if not calls:
            calls.append(self._call(0, content, f"The reply has neither a search nor an answer; {_FORMAT}"))
        return ParsedReply(content=content, calls=tuple(calls))

    def _call(self, index: int, body: str, fault: str | None) -> ToolCall | MalformedCall:
        if fault is not None:
            return MalformedCall(id=f"call-{index}", raw=body, message=fault)
        return ToolCall(id=f"call-{index}", name=self.tool, arguments={self.argument: body})

    @staticmethod
    def _fault(kind: str, body: str, closed: bool) -> str | None:
        if not closed:
            return f"The {kind} is not closed: </{kind}> is missing, so it was not taken."
        if kind == "answer":
            return "The answer was not taken, because it came before the results of the search; read them first."
        return None if body else f"The search is empty; {_FORMAT}"


def _body(text: str, opening: regex.Match[str]) -> tuple[str, int, bool]:
    """What stands after an opening tag, where to go on, and whether its own closing tag ends it."""
    end = _END.search(text, opening.end())
    if end is not None and end[1] == opening[1]:
        return text[opening.end() : end.start()].strip(), end.end(), True
    stop = len(text) if end is None else end.start() if end[1] is None else end.end()
    return text[opening.end() : len(text) if end is None else end.start()].strip(), stop, False
