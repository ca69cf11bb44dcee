"""What runs in a reward worker process: calls by import path, one at a time, until the other end hangs up.

Messages in: `("load", target, sys_path)`, `("call", target, keywords, seconds)`. Out: `("ready",)`, `("value", value)`,
`("error", text)`, `("missing", text)` for a target that cannot be imported.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["describe", "main"]

_GRACE_SECONDS = 5.0


def main(descriptor: int) -> None:
    """Serves the connection with this file descriptor."""
    os.dup2(2, 1)  # a reward's prints belong to the log
    connection = Connection(descriptor)
    connection.send(("ready",))
    functions: dict[str, Callable[..., Any]] = {}
    process = os.getpid()
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        answer = _answer(message, functions)
        if os.getpid() != process:
            os._exit(0)  # The reward forked and returned twice: a second answer would be taken for the next call's.
        connection.send(answer)


def describe(error: BaseException) -> str:
    """What foreign code raised, in words; also where its text cannot be made."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  its own `__str__` raises
        return type(error).__name__


def _answer(message: tuple[Any, ...], functions: dict[str, Callable[..., Any]]) -> tuple[str, Any]:
    try:
        if message[0] == "load":
            _, target, sys.path[:] = message
            functions[target] = _load(target)
            return "value", None
        _, target, keywords, seconds = message
        return "value", _call(functions[target], keywords, seconds)
    except _Missing as error:
        return "missing", str(error)
    except BaseException as error:  # noqa: BLE001  a reward may raise anything, and the worker goes on
        return "error", describe(error)


class _Missing(Exception):
    pass


def _load(target: str) -> Callable[..., Any]:
    module_name, _, qualified_name = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualified_name.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as error:
        raise _Missing(str(error)) from error
    return getattr(found, "function", found)


def _call(function: Callable[..., Any], keywords: dict[str, Any], seconds: float) -> Any:
    # The other end kills this process at the limit. Should it have died itself, the kernel does: a timer whose signal
    # has no handler ends the process even while C code holds the interpreter.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_SECONDS)
    try:
        return function(**keywords)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
