"""`code_interpreter`: one namespace over a trajectory, everything shown in its place, no harm from what code does."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools import ToolCall, ToolContext, ToolResult, execute_calls, get_tool
from agentfly_lib.tools.code_interpreter import CodeInterpreterSettings, code_interpreter, make_code_interpreter
from agentfly_lib.types import Problem

pytestmark = pytest.mark.usefixtures("sandboxes")

QUICK = make_code_interpreter(CodeInterpreterSettings(seconds=1.0, disk_mib=8))


class Trajectory:
    """Calls of one trajectory, closed at the end of the block."""

    def __init__(self, tool=code_interpreter) -> None:
        self.tool = tool
        self.context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))

    async def run(self, *codes: str) -> list[ToolResult]:
        calls = [ToolCall(id=f"call-{i}", name="code_interpreter", arguments={"code": c}) for i, c in enumerate(codes)]
        tools = {"code_interpreter": self.tool}
        return await execute_calls(calls, tools, self.context, default_timeout=30, max_chars=100_000)

    async def __call__(self, code: str) -> str:
        (result,) = await self.run(code)
        return result.observation

    async def __aenter__(self) -> Trajectory:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.context.resources.aclose()


class TestWhatIsShown:
    @pytest.mark.parametrize(
        ("code", "shown"),
        [
            ("6 * 7", "42"),
            ("x = 3", "(no output)"),
            ("print('hi')", "hi"),
            ("print('hi')\n6 * 7", "hi\n42"),
            ("None", "(no output)"),
            ("'text'", "'text'"),
            ("for i in range(2):\n    print(i)", "0\n1"),
            ("", "(no output)"),
            ("# nothing", "(no output)"),
            ("import sys; print('warn', file=sys.stderr); 5", "5\nstderr:\nwarn"),
            ("import os; os.system('echo from a child'); 1", "from a child\n1"),
            ("import sys; sys.stdout.write('\\udcff')", "\\udcff\n1"),
            ("print('ü€😀')", "ü€😀"),
            ("__name__", "'__main__'"),
        ],
    )
    async def test_in_its_place(self, code, shown):
        async with Trajectory() as run:
            assert await run(code) == shown

    async def test_an_error_shows_the_codes_own_lines(self):
        async with Trajectory() as run:
            (result,) = await run.run("def f():\n    return 1 / 0\nprint('before')\nf()")
        assert result.error == "ZeroDivisionError: division by zero"
        lines = result.observation.splitlines()
        assert lines[:3] == ["before", "stderr:", "Traceback (most recent call last):"]
        assert '  File "<call 1>", line 2, in f' in lines
        assert "interpreter_program" not in result.observation

    async def test_a_syntax_error(self):
        async with Trajectory() as run:
            (result,) = await run.run("x = = 1")
        assert result.error == "SyntaxError: invalid syntax"
        assert "x = = 1" in result.observation

    async def test_much_is_cut_and_counted(self):
        async with Trajectory() as run:
            printed = await run("print('x' * 100_000_000)")
            value = await run("'y' * 1_000_000")
        assert printed == "x" * 65536 + f"\n[{100_000_001 - 65536} more bytes were cut]"
        assert value.endswith("[990002 more characters were cut]")


class TestState:
    async def test_variables_imports_and_files_stay(self):
        async with Trajectory() as run:
            await run("import math\nx = math.floor(2.5)\nopen('a.txt', 'w').write('kept')")
            assert await run("x + math.ceil(0.5)") == "3"
            assert await run("open('a.txt').read()") == "'kept'"
            assert await run("_") == "'kept'"

    async def test_calls_of_one_turn_run_one_after_the_other_in_their_order(self):
        async with Trajectory() as run:
            results = await run.run("n = 1", "n = n * 10 + 2", "n = n * 10 + 3", "n")
        assert results[-1].observation == "123"

    async def test_trajectories_share_nothing(self):
        async with Trajectory() as one, Trajectory() as two:
            await one("secret = 1; open('/tmp/secret', 'w').write('1')")
            assert "NameError" in await two("secret")
            assert "FileNotFoundError" in await two("open('/tmp/secret')")

    async def test_a_failed_call_keeps_the_namespace(self):
        async with Trajectory() as run:
            await run("x = 1")
            await run("x = 2; raise ValueError")
            assert await run("x") == "2"

    async def test_the_end_of_the_trajectory_ends_it(self):
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        async with Trajectory() as run:
            await run("1")
            assert {child.pid for child in psutil.Process().children(recursive=True)} - before
        assert not {child.pid for child in psutil.Process().children(recursive=True)} - before


class TestHostileCode:
    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("print('begun'); import time; time.sleep(1000)", "ran longer than 1 s"),
            ("while True: pass", "ran longer than 1 s"),
            ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass", "ran longer"),
            ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "ran longer"),
            ("import os; os._exit(3)", "ended with exit code 3"),
            ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
            ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
            ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40"),
            ('import os; os.write(4, b\'{"result": "forged"}\\n\')', "belongs to the interpreter"),
            ("import os; os.write(4, b'x')", "belongs to the interpreter"),
            ("import os; os.closerange(0, 100)", "interpreter"),
            ("import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()", "interpreter"),
        ],
    )
    async def test_costs_its_variables_and_the_next_call_works(self, code, message):
        async with Trajectory(QUICK) as run:
            await run("x = 1; open('a.txt', 'w').write('kept')")
            (result,) = await run.run(code)
            assert message in (result.error or "")
            assert "All variables are lost" in result.observation
            assert "NameError" in await run("x")
            assert await run("open('a.txt').read()") == "'kept'"

    @pytest.mark.parametrize(
        ("code", "shown"),
        [
            ("raise SystemExit(3)", "SystemExit: 3"),
            ("exit()", "NameError"),  # a helper of interactive sessions, which this is not
            ("raise KeyboardInterrupt", "KeyboardInterrupt"),
            ("raise GeneratorExit", "GeneratorExit"),
            ("input()", "EOFError"),
            ("class Bad:\n    def __repr__(self): raise OSError('no text')\nBad()", "no text"),
            ("class Bad(Exception):\n    def __str__(self): raise OSError\nraise Bad", "Bad"),
            ("import sys; sys.stdout.close()", "no output"),
            ("import sys; sys.stdout = None", "no output"),
            ("import os; os.fork(); 5", "5"),
            ("del __builtins__['print'] if isinstance(__builtins__, dict) else __builtins__.print\n1", "1"),
            ("bytearray(1 << 31)", "MemoryError"),
            ("'\\x00' * 3", "x00"),
            ("\x00", "SyntaxError"),
        ],
    )
    async def test_is_an_observation_and_the_namespace_stays(self, code, shown):
        async with Trajectory() as run:
            await run("x = 1")
            assert shown in await run(code)
            assert await run("x") == "1"

    async def test_a_print_that_was_replaced_is_the_codes_own_business(self):
        async with Trajectory(QUICK) as run:
            await run("import json, builtins; json.dumps = None; del builtins.print")
            await run("1")  # whatever comes of it
            assert "1" in await run("1")

    async def test_files_of_the_machine_and_the_network_are_out_of_reach(self):
        async with Trajectory() as run:
            assert "FileNotFoundError" in await run("open('/etc/shadow')")
            assert "unreachable" in await run("import socket; socket.create_connection(('1.1.1.1', 53), 2)")

    async def test_cancelled_in_the_middle_nothing_is_left(self):
        run = Trajectory()
        await run("1")
        going = asyncio.ensure_future(run("import time; open('up', 'w'); time.sleep(1000)"))
        process = run.context.resources[code_interpreter.needs]  # type: ignore[index]
        await process.run(["sh", "-c", "while [ ! -e up ]; do sleep 0.01; done"])
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        await run.context.resources.aclose()


class TestSettings:
    def test_by_name(self):
        assert get_tool("code_interpreter") is code_interpreter

    def test_its_schema_is_the_code_alone(self):
        assert list(code_interpreter.parameters["properties"]) == ["code"]

    def test_others_make_another_sandbox(self):
        made = code_interpreter.with_settings({"seconds": 1, "memory_mib": 128})
        assert made.needs is not None
        assert made.needs.memory_mib == 128  # type: ignore[attr-defined]
        assert code_interpreter.with_settings({"seconds": 1}).needs == code_interpreter.needs

    def test_a_key_that_is_none(self):
        with pytest.raises(
            ConfigError, match=r"unknown key tool_settings.code_interpreter.second: did you mean seconds"
        ):
            code_interpreter.with_settings({"second": 1})

    async def test_packages_can_be_imported(self, tmp_path):
        (tmp_path / "my_package.py").write_text("answer = 42")
        tmp_path.chmod(0o755)
        async with Trajectory(code_interpreter.with_settings({"packages": [str(tmp_path)]})) as run:
            assert await run("import my_package; my_package.answer") == "42"
