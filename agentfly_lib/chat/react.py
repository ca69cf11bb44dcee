"""Actions in words, the ReAct way (Yao et al., arXiv 2210.03629), each label at the beginning of a line:

    Thought: I need the weather.                  Thought: Now I know.
    Action: weather                               Final Answer: It rains.
    Action Input: {"city": "Oslo"}

The first action counts. Whatever the policy writes after it (an observation of its own making, further actions, an
answer) happened before the real observation, so none of it is taken; each such thing is answered with a message, and so
is a reply that has neither an action nor an answer. The input is a JSON object, read exactly or refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import regex

from agentfly_lib.chat.blocks import MAX_CALLS, after_reasoning
from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall
from agentfly_lib.chat.json_call import Refused, json_end, read_arguments, show

__all__ = ["ReActParser"]

_LABEL = regex.compile(r"(?mi)^[ \t]*(thought|action[ \t]+input|action|observation|final[ \t]+answer)[ \t]*:")
_OPENING = regex.compile(r"(?mi)^[ \t]*(?:action|final[ \t]+answer)[ \t]*:")
_FORMAT = 'write "Action: <tool>" and on the next line "Action Input: {...}", or "Final Answer: <answer>".'


@dataclass(frozen=True, slots=True)
class _Part:
    label: str
    start: int
    body: str


@dataclass(frozen=True, slots=True)
class ReActParser:
    """Finds the action or the final answer of a reply. Stateless."""

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart; the content is the final answer if there is one, else what stands before the action."""
        begin = after_reasoning(text, _OPENING)
        parts = [part for part in _parts(text, begin) if part.label != "thought"]
        acts = [part for part in parts if part.label != "observation"]
        if acts and acts[0].label == "final answer":
            return ParsedReply(content=acts[0].body.strip())
        content = text[: parts[0].start].strip() if parts else text.strip()
        if not acts:
            fault = f"The reply has neither an action nor a final answer; {_FORMAT}"
            return ParsedReply(content=content, calls=(_refused(0, content, fault),))
        return ParsedReply(content=content, calls=tuple(_calls(parts)))


def _parts(text: str, position: int) -> Iterator[_Part]:
    """Labelled parts in order. A label inside the JSON of an input labels nothing."""
    found = _LABEL.search(text, position)
    while found is not None:
        label = " ".join(found[1].lower().split())
        end = json_end(text, found.end()) if label == "action input" else None
        following = _LABEL.search(text, found.end() if end is None else end)
        stop = len(text) if following is None else following.start()
        yield _Part(label, found.start(), text[found.end() : stop])
        found = following


def _calls(parts: list[_Part]) -> Iterator[ToolCall | MalformedCall]:
    name, index, invented = "", 0, False
    rest = deque(parts)
    while rest and index < MAX_CALLS:
        part = rest.popleft()
        if part.label == "observation":
            invented = invented or index > 0
            continue
        raw, arguments = part.body.strip(), ""
        if part.label == "action" and rest and rest[0].label == "action input":
            arguments = rest.popleft().body.strip()
            raw = f"{raw}\n{arguments}"
        fault = _late(part, index, name, invented)
        if fault is None:
            name = part.body.strip() if part.label == "action" else ""
            yield _read(part, arguments)
        else:
            yield _refused(index, raw, fault)
        index += 1


def _late(part: _Part, index: int, first: str, invented: bool) -> str | None:
    """Why something that stands behind the first action is not taken; None for the first action itself."""
    if index == 0:
        return None
    what = "The final answer" if part.label == "final answer" else f"The action {show(part.body.strip())}"
    why = "you wrote an observation yourself" if invented else "only one action is taken in a turn"
    awaited = f" of {show(first)}" if first else ""
    return f"{what} was not taken: {why}. End your turn after the action and wait for the observation{awaited}."


def _read(part: _Part, arguments: str) -> ToolCall | MalformedCall:
    name = part.body.strip()
    if part.label == "action input":
        return _refused(0, name, f"There is an action input without an action; {_FORMAT}")
    if not name or "\n" in name:
        return _refused(0, name, f"The action must be the name of one tool, got {show(name)}; {_FORMAT}")
    if not arguments:
        return _refused(0, name, f"The action {show(name)} has no action input; {_FORMAT}")
    try:
        return ToolCall(id="call-0", name=name, arguments=read_arguments(arguments, name))
    except Refused as refusal:
        return _refused(0, f"{name}\n{arguments}", str(refusal))


def _refused(index: int, raw: str, message: str) -> MalformedCall:
    return MalformedCall(id=f"call-{index}", raw=raw, message=message)
