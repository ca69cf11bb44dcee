"""A problem's tests against code that is right, wrong, slow, or hostile."""

from __future__ import annotations

import shutil
import time
from unittest.mock import AsyncMock

import pytest

from agentfly_lib.errors import SandboxError, SandboxUnavailableError
from agentfly_lib.resources import Process
from agentfly_lib.resources.process import PYTHON
from agentfly_lib.rewards import code_tests, score_groups
from agentfly_lib.rewards.code_tests import code_in
from agentfly_lib.types import Outcome

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")

TESTS = ["assert double(2) == 4", "assert double(-1) == -2", "assert double('a') == 'aa'"]


def reply(code: str) -> str:
    return f"Here you are:\n```python\n{code}\n```\nDone."


async def scores(made, make_group, *replies, tests=TESTS):
    group = make_group(*replies, tests=tests)
    return await score_groups(made, [group], timeout=60.0, max_concurrency=2, retries=0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py\na\n```\nand\n```Python\nb\n```", "b\n"),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
        ("  ```python\n  a\n  ```", "  a\n"),
        ("no code", None),
        ("```python\ncut", None),
        ("```json\n{}\n```", None),
        ("```python\na\n```\nand\n```python\ncut", "a\n"),
        ("```json\n{}\n```\n```python\na\n```", "a\n"),
        ("```\r\na\r\n```\r\n", "a\r\n"),
    ],
)
def test_where_the_code_stands(text, code):
    assert code_in(text) == code


@pytest.mark.parametrize("line", ["```python\n", "```\nx\n", " " * 100 + "\n", "```" + " " * 100 + "\n"])
def test_no_response_holds_up_the_event_loop(line):
    began = time.process_time()
    code_in("```python\n" + line * 3_000)
    assert time.process_time() - began < 1.0


@needs_sandbox
class TestInTheSandbox:
    async def test_right_wrong_and_none(self, make_group):
        made = code_tests(seconds=20)
        found = await scores(
            made,
            make_group,
            reply("def double(x):\n    return x + x"),
            reply("def double(x):\n    return x * 2 if isinstance(x, int) else x"),
            reply("def double(x:\n"),
            "I cannot.",
        )
        assert [s.reward for s in found] == [1.0, 0.0, 0.0, 0.0]
        assert all(s.outcome is Outcome.SCORED for s in found)

    async def test_a_share_if_asked_for(self, make_group):
        (found,) = await scores(
            code_tests(seconds=20, partial=True), make_group, reply("def double(x):\n    return 2 * int(x)")
        )
        assert found.reward == pytest.approx(2 / 3)

    @pytest.mark.parametrize(
        "code",
        [
            "import sys; sys.exit(0)",
            "import os; os._exit(0)",
            "import os; os.kill(os.getpid(), 9)",
            "raise SystemExit",
            "print('passed'); import os; os.write(1, b'passed'); os._exit(0)",
            "def double(x): raise SystemExit(0)",
            "def double(x):\n    import os\n    os._exit(0)",
            "import builtins; builtins.AssertionError = ValueError",
            "x = 'a' * 10**12",
        ],
    )
    async def test_what_ends_early_has_not_passed(self, make_group, code):
        (found,) = await scores(code_tests(seconds=20), make_group, reply(code))
        assert (found.outcome, found.reward) == (Outcome.SCORED, 0.0)

    async def test_what_takes_for_ever_has_not_passed(self, make_group):
        (found,) = await scores(code_tests(seconds=1), make_group, reply("while True: pass"))
        assert (found.outcome, found.reward) == (Outcome.SCORED, 0.0)

    async def test_what_brings_the_sandbox_down_has_not_passed(self, make_group, monkeypatch):
        real = Process.run

        async def dies_of_code(self, argv, **options):
            if argv[0] == PYTHON:
                raise SandboxError("the sandbox died")
            return await real(self, argv, **options)

        monkeypatch.setattr(Process, "run", dies_of_code)
        (found,) = await scores(code_tests(), make_group, reply("x = 1"))
        assert (found.outcome, found.reward) == (Outcome.SCORED, 0.0)

    async def test_a_sandbox_that_does_not_come_up_is_not_the_codes_fault(self, make_group, monkeypatch):
        monkeypatch.setattr(Process, "start", AsyncMock(side_effect=SandboxError("no room")))
        (found,) = await scores(code_tests(), make_group, reply("x = 1"))
        assert (found.outcome, found.reward) == (Outcome.DROPPED, None)

    async def test_standard_input_and_output(self, make_group):
        tests = [{"input": "2\n", "output": "4"}, {"input": "5\n", "output": "10\n\n"}]
        good, bad, noisy = (
            reply("print(2 * int(input()))"),
            reply("print(4)"),
            reply("print(2 * int(input()))\nimport sys; sys.exit(1)"),
        )
        found = await scores(code_tests(seconds=20), make_group, good, bad, noisy, tests=tests)
        assert [s.reward for s in found] == [1.0, 0.0, 0.0]

    async def test_one_test_as_text(self, make_group):
        (found,) = await scores(code_tests(seconds=20), make_group, reply("x = 4"), tests="assert x == 4")
        assert found.reward == 1.0

    @pytest.mark.parametrize("tests", [[], None, [3], {"input": 3, "output": "x"}])
    async def test_tests_that_are_none_drop_the_trajectory(self, make_group, tests):
        (found,) = await scores(code_tests(), make_group, reply("x = 4"), tests=tests)
        assert found.outcome is Outcome.DROPPED
        assert "the column 'tests' holds" in (found.error or "")


def test_without_bubblewrap_nothing_is_run(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailableError, match="bubblewrap"):
        code_tests()
