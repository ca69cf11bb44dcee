"""Tool calls of Qwen3-Coder, in tags:

    <tool_call>
    <function=calculator>
    <parameter=expression>
    2 + 3
    </parameter>
    </function>
    </tool_call>

The outer tag may be missing. One line break on either side of a value belongs to the tags. A value ends at the closing
tag that another parameter or the end of the function follows, so that text like `</parameter>` inside a value stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import MAX_PARAMETERS, Attempt, Block, BlockParser, attempt
from agentfly_lib.chat.json_call import Refused, show
from agentfly_lib.chat.values import ParameterTypes

__all__ = ["Qwen3CoderParser"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = regex.compile(r"\s*<function=([^>\n]*)>")
_FUNCTION_END = regex.compile(r"\s*</function>")
_CALL_END = regex.compile(r"\s*</tool_call>")
_PARAMETER = regex.compile(r"\s*<parameter=([^>\n]*)>")
_VALUE_END = regex.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_NEXT = {True: regex.compile(r"</?tool_call>"), False: regex.compile(r"<tool_call>|<function=")}
"""What ends a call that cannot be read, by whether it stands in the outer tag."""
_EXPECTED = "<function=NAME><parameter=X>value</parameter></function>"


@dataclass(frozen=True, slots=True)
class Qwen3CoderParser(BlockParser):
    """Finds `<function=...>` blocks in a reply."""

    types: ParameterTypes = field(default_factory=ParameterTypes)
    opening: ClassVar[regex.Pattern[str]] = regex.compile(r"<tool_call>|<function=")

    def block(self, text: str, start: int, end: int) -> Block:
        wrapped = text.startswith(_OPEN, start)
        begin = end if wrapped else start
        try:
            after, found = self._read(text, begin, wrapped)
        except Refused as refusal:
            closing = _NEXT[wrapped].search(text, end)
            stop = closing.start() if closing is not None else len(text)
            after = closing.end() if closing is not None and closing[0] == _CLOSE else stop
            return Block(end=after, attempts=(Attempt(raw=text[begin:stop], fault=str(refusal)),))
        if wrapped:
            return Block(end=after, attempts=(found,), settled=True)
        closing = _CALL_END.match(text, after)  # closed without having been opened, as models do
        rest = text[after:].lstrip()
        return Block(
            end=closing.end() if closing is not None else after,
            attempts=(found,),
            settled=closing is not None or not _CLOSE.startswith(rest),
        )

    def _read(self, text: str, position: int, wrapped: bool) -> tuple[int, Attempt]:
        """The index after a closed call, and the call. Raises `Refused` where its end cannot be told."""
        begin = position
        head = _FUNCTION.match(text, position)
        if head is None:
            raise Refused(f"The tool call names no function, expected {_EXPECTED}.")
        name, position = head[1].strip(), head.end()
        arguments, faults = dict[str, Any](), list[str]()
        while (parameter := _PARAMETER.match(text, position)) is not None:
            key = parameter[1].strip()
            value_end = _VALUE_END.search(text, parameter.end())
            if value_end is None:
                raise Refused(f"The parameter {key} of {name} is not closed: </parameter> is missing.")
            if key in arguments:
                faults.append(f"The tool call has the parameter {show(key)} twice.")
            value = _without_line_breaks(text[parameter.end() : value_end.start()])
            arguments[key] = self.types.read(name, key, value)
            position = value_end.end()
            if len(arguments) + len(faults) > MAX_PARAMETERS:
                raise Refused(f"The call of {name} has more than {MAX_PARAMETERS} parameters.")
        closed = _FUNCTION_END.match(text, position)
        if closed is None:
            rest = text[position:].strip()[:20]
            raise Refused(
                f"The call of {name} goes on with {show(rest)}, expected <parameter=X> or </function>."
                if rest
                else f"The call of {name} is not closed: </function> is missing, so it was not executed."
            )
        position = closed.end()
        if wrapped:
            closed = _CALL_END.match(text, position)
            if closed is None:
                raise Refused(f"The tool call is not closed: {_CLOSE} is missing, so it was not executed.")
            position = closed.end()
        if not name:
            faults.insert(0, f"The tool call names no function, expected {_EXPECTED}.")

        def read() -> tuple[str, dict[str, Any]]:
            if faults:
                raise Refused(faults[0])
            return name, arguments

        return position, attempt(text[begin:position], read)


def _without_line_breaks(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")
