"""Runs a problem's tests against the code in a response, in a sandbox that is thrown away afterwards.

The column `tests` holds, for each test, Python that fails by raising (an `assert`), or a table with `input` for the
program's standard input and the `output` that is expected. Each test is a process of its own. A test has passed when it
was run to its end, which code that merely exits or prints has not shown. But an assertion shares its process with the
code that it tests, so that a line which looks at its caller's variables can give the proof itself: a policy that is
trained for long enough finds that. Prefer tests by input and output, which have nothing in the process to be found.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveFloat

from agentfly_lib.errors import RewardError, SandboxError
from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.reward import Reward

if TYPE_CHECKING:
    from agentfly_lib.resources import Process

__all__ = ["code_in", "code_tests"]

START_SECONDS = 40.0
"""For the sandbox to come up and go, beyond the time of the tests."""
MAX_OUTPUT_BYTES = 1 << 16
_FENCE = re.compile(r"[ \t]*```[ \t]*(\w*)")
_PYTHON = ("", "py", "python", "python3")
_FILE = "solution.py"

_CHECK = """
import json, os, sys
task = json.load(sys.stdin)
proof = os.dup(1)
silent = os.open(os.devnull, os.O_RDWR)
for descriptor in (0, 1):
    os.dup2(silent, descriptor)
names = {"__name__": "solution"}
exec(compile(open(task["file"]).read(), task["file"], "exec"), names)
exec(compile(task["test"], "test.py", "exec"), names)
os.write(proof, task["word"].encode())
os._exit(0)
"""


@reward_factory
def code_tests(
    *,
    seconds: PositiveFloat = 10.0,
    total_seconds: PositiveFloat = 60.0,
    memory_mib: Annotated[int, Field(ge=64)] = 512,
    partial: bool = False,
) -> Reward:
    """1 if all tests pass, else 0; with `partial`, the share that passes.

    The code is the last Python block of the final response; a response without one is worth 0.

    seconds, total_seconds: of one test, and of all. Tests that time out, have no time left, or lose their sandbox to
        the code, have not passed.
    Raises `SandboxUnavailableError` where no sandbox can be had.
    """
    from agentfly_lib.resources import ProcessSpec, open_process

    spec = ProcessSpec(memory_mib=memory_mib)
    spec.check()

    async def passes(final_response: str, tests: Any) -> float:
        checks = _checks(tests)
        code = code_in(final_response)
        if code is None:
            return 0.0
        passed, clock = 0, asyncio.get_running_loop()
        async with open_process(spec) as process:
            await process.run(["/bin/sh", "-c", f"cat > {_FILE}"], stdin=code, seconds=seconds)
            deadline = clock.time() + total_seconds
            for number, check in enumerate(checks):
                left = min(seconds, deadline - clock.time())
                if left <= 0 or (passed < number and not partial):
                    break
                try:
                    passed += await _passes(process, check, seconds=left)
                except SandboxError:  # it was up: what has brought it down is the code
                    break
        return passed / len(checks) if partial else float(passed == len(checks))

    return Reward(name="code_tests", function=passes, timeout=total_seconds + START_SECONDS)


def code_in(text: str) -> str | None:
    """The last fenced block of Python, or of no named language; None if there is none."""
    code: list[str] | None = None
    block: list[str] | None = None
    language = ""
    for line in text.split("\n"):
        if block is None:
            if (fence := _FENCE.match(line)) is not None:
                block, language = [], fence[1].lower()
        elif line.strip() != "```":
            block.append(line + "\n")
        else:
            code, block = block if language in _PYTHON else code, None
    return None if code is None else "".join(code)


def _checks(tests: Any) -> list[str | Mapping[str, Any]]:
    checks: list[Any] = [tests] if isinstance(tests, str | Mapping) else list(tests or ())
    for check in checks:
        is_table = isinstance(check, Mapping) and isinstance(check.get("input"), str) and "output" in check
        if not isinstance(check, str) and not is_table:
            raise RewardError(
                f"reward 'code_tests': the column 'tests' holds a {type(check).__name__}, expected Python code or a "
                "table with 'input' and 'output'"
            )
    if not checks:
        raise RewardError("reward 'code_tests': the column 'tests' holds no test")
    return checks


async def _passes(process: Process, check: str | Mapping[str, Any], *, seconds: float) -> bool:
    from agentfly_lib.resources.process import PYTHON

    if isinstance(check, str):
        word = secrets.token_hex(16)
        task = json.dumps({"file": _FILE, "test": check, "word": word})
        done = await process.run([PYTHON, "-I", "-c", _CHECK], stdin=task, seconds=seconds)
        return done.exit_code == 0 and not done.timed_out and done.stdout == word
    argv, given = [PYTHON, "-I", _FILE], check["input"]
    done = await process.run(argv, stdin=given, seconds=seconds, max_bytes=MAX_OUTPUT_BYTES)
    whole = done.exit_code == 0 and not done.timed_out and not done.cut_stdout
    return whole and _lines(done.stdout) == _lines(str(check["output"]))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
