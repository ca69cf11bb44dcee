"""A copy of a repository, somewhere where nobody needs to trust what runs on it.

Blocking, as environments are: each workspace has an event loop of its own for the sandbox below it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentfly_lib.envs.swe import inside_program
from agentfly_lib.resources import Completed, workspace_program

__all__ = ["Answer", "Sandbox", "Workspace"]

Value = TypeVar("Value")

_ANSWER_BYTES = 1 << 26
_LOG_CHARS = 4000
_BEST_SHELL = 'if command -v bash >/dev/null; then exec bash -c "$0"; else exec sh -c "$0"; fi'


class Sandbox(Protocol):
    """What a workspace needs of a sandbox; `resources.Process` is one."""

    async def run(
        self, argv: Sequence[str], *, stdin: str = "", seconds: float = 10.0, max_bytes: int = 1 << 16
    ) -> Completed: ...

    async def quieten(self) -> None: ...


class Answer(Exception):
    """A program of ours inside gave no answer, or said why it could not do what it was asked for."""


class Workspace:
    """A folder in a sandbox of its own. Raises `SandboxError` where the sandbox itself fails."""

    def __init__(self, sandbox: AbstractAsyncContextManager[Sandbox], *, folder: str, python: str) -> None:
        """Opens the sandbox. `folder`: where the repository is, or will be. `python`: runs our programs inside."""
        self.folder, self._python = folder, python
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        try:
            self._sandbox = self._wait(self._stack.enter_async_context(sandbox))
        except BaseException:
            self._runner.close()
            raise
        self._closed = False

    def close(self) -> None:
        """Ends all that runs in it. A second call does nothing."""
        if not self._closed:
            self._closed = True
            try:
                self._wait(self._stack.aclose())
            finally:
                self._runner.close()

    def shell(self, command: str, *, seconds: float, max_bytes: int, stdin: str = "") -> Completed:
        """Runs a command in the folder."""
        return self._run(["/bin/sh", "-c", _BEST_SHELL, command], stdin=stdin, seconds=seconds, max_bytes=max_bytes)

    def quieten(self) -> None:
        """Ends all that runs in it; its files stay."""
        self._wait(self._sandbox.quieten())

    def work_on_files(self, action: str, arguments: Mapping[str, Any], *, seconds: float) -> str:
        """Does what a file tool does (see `resources.workspace_program`). Raises `Answer`."""
        request = json.dumps({"action": action, **arguments})
        argv = [self._python, "-I", "-S", "-c", _source(workspace_program.__file__)]
        done = self._run(argv, stdin=request, seconds=seconds, max_bytes=_ANSWER_BYTES)
        answer = _answer(done, action, seconds)
        if "error" in answer or not isinstance(answer.get("text"), str):
            raise Answer(str(answer.get("error", f"{action} answered nonsense")))
        return answer["text"]

    def ask(self, action: str, *, seconds: float, **arguments: Any) -> dict[str, Any]:
        """Has `inside_program` do something. Raises `Answer`.

        Where a policy's processes run beside it, or what it runs on is the policy's, the answer may be theirs.
        """
        word = secrets.token_hex(16)
        request = json.dumps({"action": action, "word": word, "folder": self.folder, **arguments})
        alone = () if action == "test" else ("-I", "-S")  # tests may import what is installed
        argv = [self._python, *alone, "-c", _source(inside_program.__file__)]
        done = self._run(argv, stdin=request, seconds=seconds, max_bytes=_ANSWER_BYTES, folder="/")
        told = _answer(done, action, seconds)
        if told.get("word") != word:
            raise Answer(f"{action} ended without an answer")
        answer = told.get("answer")
        if not isinstance(answer, dict) or "error" in answer:
            raise Answer(str(answer["error"]) if isinstance(answer, dict) else f"{action} answered nonsense")
        return answer

    def _run(
        self, argv: Sequence[str], *, stdin: str, seconds: float, max_bytes: int, folder: str | None = None
    ) -> Completed:
        there = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', folder or self.folder, *argv]
        return self._wait(self._sandbox.run(there, stdin=stdin, seconds=seconds, max_bytes=max_bytes))

    def _wait(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        return self._runner.run(coroutine)


def _answer(done: Completed, action: str, seconds: float) -> dict[str, Any]:
    if done.timed_out:
        raise Answer(f"{action} took longer than {seconds:g} s and was stopped")
    if done.cut_stdout:
        raise Answer(f"{action} had more to say than {_ANSWER_BYTES} bytes")
    try:
        answer = json.loads(done.stdout)
    except (ValueError, RecursionError) as error:
        raise Answer(f"{action} could not be done: {done.stderr.strip()[-_LOG_CHARS:] or 'no answer'}") from error
    if not isinstance(answer, dict):
        raise Answer(f"{action} answered nonsense")
    return answer


@functools.cache
def _source(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
