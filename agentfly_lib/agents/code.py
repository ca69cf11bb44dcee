"""`CodeAgent`: writes Python, which an interpreter runs and answers."""

from __future__ import annotations

from functools import cached_property

from agentfly_lib.agents.text import TextAgent
from agentfly_lib.chat.calls import ParsedReply
from agentfly_lib.chat.code_block import CodeBlockParser

__all__ = ["CodeAgent"]

_INSTRUCTIONS = """\
Solve the task with Python where that helps. Write code in a block:
```python
print(6 * 7)
```
End your turn after it: the code is run, and you are given its output. Variables stay for later blocks. When you know
the answer, give it without a code block."""


class CodeAgent(TextAgent):
    """Its only tool is the interpreter: the one named `code_interpreter`, or the one that it was given."""

    default_tools = ("code_interpreter",)

    @cached_property
    def _parser(self) -> CodeBlockParser:
        tool, argument = self.only_tool("code_interpreter")
        return CodeBlockParser(tool=tool, argument=argument)

    def check(self) -> None:
        """Raises `ConfigError` if it is not clear which tool runs the code."""
        _ = self._parser

    def instructions(self) -> str:
        """The format."""
        return _INSTRUCTIONS

    def parse(self, text: str, truncated: bool) -> ParsedReply:
        """Takes a reply apart; `truncated` if a limit cut it."""
        return self._parser.parse(text, truncated=truncated)

    def wrap(self, observation: str) -> str:
        """One result as the policy reads it."""
        return f"Output:\n{observation}"
