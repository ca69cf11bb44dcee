"""`CodeAgent`: writes Python, which an interpreter runs and answers."""

from __future__ import annotations

from agentfly_lib.agents.one_tool import OneToolAgent
from agentfly_lib.chat.code_block import CodeBlockParser

__all__ = ["CodeAgent"]

_INSTRUCTIONS = """\
Solve the task with Python where that helps. Write code in a block:
```python
print(6 * 7)
```
End your turn after it: the code is run, and you are given its output. Variables stay for later blocks. When you know
the answer, give it without a code block."""


class CodeAgent(OneToolAgent):
    """Its only tool is the interpreter: the one named `code_interpreter`, or the one that it was given."""

    default_tools = ("code_interpreter",)
    tool_name = "code_interpreter"

    def make_parser(self, tool: str, argument: str) -> CodeBlockParser:
        """What takes replies apart."""
        return CodeBlockParser(tool=tool, argument=argument)

    def instructions(self) -> str:
        """The format."""
        return _INSTRUCTIONS

    def wrap(self, observation: str) -> str:
        """One result as the policy reads it."""
        return f"Output:\n{observation}"
