"""`code_interpreter`: Python in a sandbox, with one namespace for the whole trajectory.

The process inside is `interpreter_program.py`. Code that runs too long, ends the process or brings the sandbox down
costs its variables; the model is told so, and its next call finds a new interpreter.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from agentfly_lib.errors import SandboxError
from agentfly_lib.resources import Completed
from agentfly_lib.tools import interpreter_program
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.sandbox import SandboxSettings, one_at_a_time, sandbox_of
from agentfly_lib.tools.tool import Tool, tool

__all__ = ["CodeInterpreterSettings", "code_interpreter", "make_code_interpreter"]

START_SECONDS = 20.0
_STATE = "code_interpreter"


class CodeInterpreterSettings(SandboxSettings):
    """Limits of the interpreter."""

    max_result_chars: int = 10_000
    """Of the last expression's value."""


def make_code_interpreter(settings: CodeInterpreterSettings) -> Tool:
    """The tool with these limits."""
    spec = settings.spec

    async def ask(context: ToolContext, interpreter: _Interpreter, code: str, seconds: float) -> Completed:
        interpreter.calls += 1
        request = {"id": interpreter.calls, "code": code, "max_chars": settings.max_result_chars}
        sandbox = sandbox_of(context, spec)
        command = [sandbox.python, "-I", "-S", "-c", _program(), *settings.packages]
        return await sandbox.ask(
            interpreter.session, command, json.dumps(request), seconds=seconds, max_bytes=settings.max_output_bytes
        )

    @tool(needs=spec, timeout=settings.timeout, settings=settings, make=make_code_interpreter)
    async def code_interpreter(code: str, context: ToolContext) -> ToolResult:
        """Run Python code. Variables, imports and files stay for the next call; there is no network.

        The value of a last expression is shown, and what is printed.

        Args:
            code: Python source.
        """
        async with one_at_a_time(context, _STATE):
            interpreter = context.state.setdefault(_STATE, _Interpreter())
            try:
                if not interpreter.running:  # its start is not part of the code's time
                    await ask(context, interpreter, "", START_SECONDS)
                done = await ask(context, interpreter, code, settings.seconds)
            except SandboxError as error:
                interpreter.replace()
                return _failed("", f"{error}. All variables and files are lost; the next call begins anew.")
            answer = _read(done.reply, interpreter.calls)
            if answer is None:
                interpreter.replace()
                return _failed(done.shown(), _reason(done, settings.seconds) + _LOST)
            observation = done.shown(answer["result"])
            if interpreter.running and done.fresh:
                observation = "\n".join(filter(None, [_RESTARTED, observation]))
            interpreter.running = True
            return ToolResult(observation=observation or "(no output)", error=answer["error"])

    return code_interpreter


_LOST = " All variables are lost; the next call begins with a new interpreter."
_RESTARTED = "[The interpreter was restarted before this call; variables of earlier calls are gone.]"


@dataclass
class _Interpreter:
    """A trajectory's interpreter, as seen from here."""

    calls: int = 0
    number: int = 0
    running: bool = False

    @property
    def session(self) -> str:
        return f"{_STATE}-{self.number}"

    def replace(self) -> None:
        """The next call begins with another process, whatever this one may still have to say."""
        self.number += 1
        self.running = False


def _reason(done: Completed, seconds: float) -> str:
    if done.timed_out:
        return f"The code ran longer than {seconds:g} s and was stopped."
    if done.reply is not None:
        return "The code wrote to a descriptor that belongs to the interpreter, which was given up."
    return f"The interpreter {done.ending}."


def _failed(printed: str, message: str) -> ToolResult:
    return ToolResult(observation="\n".join(filter(None, [printed, f"[{message}]"])), error=message)


def _read(reply: str | None, number: int) -> dict[str, str | None] | None:
    """The program's answer; None if there is none, or the code has written something of its own in its place."""
    try:
        answer = json.loads(reply or "")
        if answer["id"] != number:
            return None
        return {key: None if answer[key] is None else str(answer[key]) for key in ("result", "error")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@functools.cache
def _program() -> str:
    return Path(interpreter_program.__file__).read_text(encoding="utf-8")


code_interpreter = make_code_interpreter(CodeInterpreterSettings())
"""With the limits that `CodeInterpreterSettings` says."""
