"""Code as the only action: the fenced Python blocks of a reply are one call of an interpreter.

    ```python
    print(6 * 7)
    ```

Several blocks of a reply are run as one program, in order, since the later ones build on the earlier. A block that is
not closed may not say what was meant, so nothing of such a reply is run. Blocks in other languages, or in none, are
text. A reply without a Python block is the final one.
"""

from __future__ import annotations

from dataclasses import dataclass

import regex

from agentfly_lib.chat.blocks import after_reasoning
from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall

__all__ = ["CodeBlockParser"]

_FENCE = regex.compile(r"(?m)^[ \t]*(?P<ticks>`{3,}+)[ \t]*+(?P<language>[^\s`]*+)[^\n`]*+$\n?")
_PYTHON = regex.compile(r"(?mi)^[ \t]*`{3,}[ \t]*(?:python3?|py)\b")
_LANGUAGES = ("python", "python3", "py")


@dataclass(frozen=True, slots=True)
class CodeBlockParser:
    """Finds the Python blocks of a reply."""

    tool: str = "code_interpreter"
    """Name of the tool that runs them."""
    argument: str = "code"
    """Its parameter for the program."""

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart; its programs become one call."""
        position = after_reasoning(text, _PYTHON)
        outside, programs, closed = [text[:position]], list[str](), True
        while (fence := _FENCE.search(text, position)) is not None:
            closing = _closing(text, fence.end(), len(fence["ticks"]))
            end = len(text) if closing is None else closing.start()
            after = len(text) if closing is None else closing.end()
            if fence["language"].lower() in _LANGUAGES:
                outside.append(text[position : fence.start()])
                programs.append(text[fence.end() : end])
                closed = closed and closing is not None
            else:
                outside.append(text[position:after])
            position = after
        outside.append(text[position:])
        content = "".join(outside).strip()
        if not programs:
            return ParsedReply(content=content)
        return ParsedReply(content=content, calls=(self._call("\n".join(programs), closed),))

    def _call(self, program: str, closed: bool) -> ToolCall | MalformedCall:
        fault = None
        if not closed:
            fault = "The code block is not closed: a line with ``` is missing, so nothing was run."
        elif not program.strip():
            fault = "The code block is empty, so nothing was run."
        if fault is not None:
            return MalformedCall(id="call-0", raw=program, message=fault)
        return ToolCall(id="call-0", name=self.tool, arguments={self.argument: program})


def _closing(text: str, position: int, ticks: int) -> regex.Match[str] | None:
    """The line that closes a block: at least as many ticks as opened it, and nothing else."""
    return regex.compile(rf"(?m)^[ \t]*`{{{ticks},}}[ \t]*$").search(text, position)
