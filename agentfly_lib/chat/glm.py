"""Tool calls of GLM 4.5 and later, in tags:

    <tool_call>calculator
    <arg_key>expression</arg_key>
    <arg_value>2 + 3</arg_value>
    </tool_call>

Values that are not strings are JSON. A value ends at the closing tag that another key or the end of the call follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import MAX_PARAMETERS, Attempt, Block, BlockParser, attempt
from agentfly_lib.chat.json_call import Refused, show
from agentfly_lib.chat.values import ParameterTypes

__all__ = ["GlmParser"]

_CLOSE = "</tool_call>"
_NAME = regex.compile(r"\s*([^\s<]*)\s*")
_KEY = regex.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_VALUE_END = regex.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")
_END = regex.compile(r"\s*</tool_call>")
_NEXT = regex.compile(r"</?tool_call>")
_EXPECTED = "<tool_call>NAME<arg_key>X</arg_key><arg_value>value</arg_value></tool_call>"


@dataclass(frozen=True, slots=True)
class GlmParser(BlockParser):
    """Finds `<tool_call>` blocks with key and value tags in a reply."""

    types: ParameterTypes = field(default_factory=ParameterTypes)
    opening: ClassVar[regex.Pattern[str]] = regex.compile("<tool_call>")

    def block(self, text: str, start: int, end: int) -> Block:
        try:
            after, found = self._read(text, end)
        except Refused as refusal:
            stop, after = _give_up(text, end)
            return Block(end=after, attempts=(Attempt(raw=text[end:stop], fault=str(refusal)),))
        return Block(end=after, attempts=(found,), settled=True)

    def _read(self, text: str, begin: int) -> tuple[int, Attempt]:
        """The index after a closed call, and the call. Raises `Refused` where its end cannot be told."""
        head = _NAME.match(text, begin)
        name, position = (head[1], head.end()) if head is not None else ("", begin)
        arguments, faults = dict[str, Any](), list[str]()
        while (opened := _KEY.match(text, position)) is not None:
            key = opened[1].strip()
            value_end = _VALUE_END.search(text, opened.end())
            if value_end is None:
                raise Refused(f"The argument {show(key)} of {name} is not closed: </arg_value> is missing.")
            if key in arguments:
                faults.append(f"The tool call has the argument {show(key)} twice.")
            arguments[key] = self.types.read(name, key, text[opened.end() : value_end.start()])
            position = value_end.end()
            if len(arguments) + len(faults) > MAX_PARAMETERS:
                raise Refused(f"The call of {name} has more than {MAX_PARAMETERS} arguments.")
        closed = _END.match(text, position)
        if closed is None:
            rest = text[position:].strip()[:20]
            raise Refused(
                f"The call of {name} goes on with {show(rest)}, expected {_EXPECTED}."
                if rest
                else f"The tool call is not closed: {_CLOSE} is missing, so it was not executed."
            )
        if not name:
            faults.insert(0, f"The tool call names no tool, expected {_EXPECTED}.")

        def read() -> tuple[str, dict[str, Any]]:
            if faults:
                raise Refused(faults[0])
            return name, arguments

        return closed.end(), attempt(text[begin : closed.start()], read)


def _give_up(text: str, position: int) -> tuple[int, int]:
    """Where a call that cannot be read ends, and where to go on searching."""
    found = _NEXT.search(text, position)
    if found is None:
        return len(text), len(text)
    return found.start(), found.end() if found[0] == _CLOSE else found.start()
