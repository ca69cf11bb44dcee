"""What runs inside the sandbox for `code_interpreter`: reads code from descriptor 3, answers on 4, keeps one namespace.

Standard library only. Messages are JSON, one a line: `{"id", "code", "max_chars"}` in, `{"id", "result",
"error"}` out. Everything printed goes to the process's own output, where whoever started it reads it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import sys
import traceback
import types
from typing import Any

__all__ = ["main"]


def main(packages: list[str]) -> None:
    """Answers until there is nothing more to read."""
    sys.path[:] = [*sys.path, *packages]
    for descriptor in (3, 4):
        os.set_inheritable(descriptor, False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    process = os.getpid()
    with os.fdopen(3, encoding="utf-8") as requests, os.fdopen(4, "w", encoding="utf-8") as replies:
        for number, line in enumerate(requests):
            answer = run(json.loads(line), vars(module), f"<call {number}>")
            if os.getpid() != process:
                os._exit(0)  # the code forked and came back twice
            replies.write(json.dumps(answer) + "\n")
            replies.flush()


def run(request: dict[str, Any], namespace: dict[str, Any], name: str) -> dict[str, Any]:
    """Executes code; the value of a last expression is the result, and `_` afterwards."""
    code, limit = request["code"], request["max_chars"]
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    result = error = None
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)  # noqa: S102  this is what the sandbox is for
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307
            if value is not None:
                namespace["_"] = value
                result = repr(value)
                if len(result) > limit:
                    result = f"{result[:limit]}\n[{len(result) - limit} more characters were cut]"
    except BaseException as caught:  # noqa: BLE001  the code may raise anything, SystemExit included
        error = "".join(traceback.format_exception_only(type(caught), caught)).strip().splitlines()[-1][:limit]
        report(caught, name)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the code has closed or replaced it
            stream.flush()
    return {"id": request["id"], "result": result, "error": error}


def report(error: BaseException, name: str) -> None:
    """Prints a traceback that begins with the code's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-20)
    print("".join(lines), end="", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
