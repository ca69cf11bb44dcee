"""File tools and the shell: one workspace per trajectory, and no way out of it."""

from __future__ import annotations

import pytest

from agentfly_lib.tools import ToolCall, ToolContext, ToolResult, execute_calls, get_tool
from agentfly_lib.types import Problem

pytestmark = pytest.mark.usefixtures("sandboxes")

NAMES = ("code_interpreter", "create_file", "edit_file", "grep", "list_files", "read_file", "run_shell", "undo_edit")
TOOLS = {name: get_tool(name) for name in NAMES}


@pytest.fixture
async def workspace():
    """Calls tools of one trajectory, by name."""
    context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))

    async def call(name: str, **arguments) -> ToolResult:
        todo = [ToolCall(id="call-0", name=name, arguments=arguments)]
        (result,) = await execute_calls(todo, TOOLS, context, default_timeout=30, max_chars=10_000)
        return result

    yield call
    await context.resources.aclose()


POEM = "one\ntwo\nthree\ntwo\n"


async def test_create_read_edit_undo(workspace):
    assert (await workspace("create_file", path="a/poem.txt", content=POEM)).observation.endswith("4 lines.")
    assert (await workspace("read_file", path="a/poem.txt")).observation == "1\tone\n2\ttwo\n3\tthree\n4\ttwo"
    edited = await workspace("edit_file", path="a/poem.txt", old="one\ntwo", new="1\n2")
    assert edited.observation == "a/poem.txt was changed:\n1\t1\n2\t2\n3\tthree\n4\ttwo"
    assert (await workspace("run_shell", command="cat a/poem.txt")).observation == "1\n2\nthree\ntwo"
    await workspace("undo_edit")
    assert (await workspace("run_shell", command="cat a/poem.txt")).observation == POEM.strip()
    await workspace("undo_edit")
    assert (await workspace("list_files")).observation == "a/"
    assert (await workspace("undo_edit")).error == "there is no change left to take back."


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("read_file", {"path": "none"}, "there is no file none"),
        ("read_file", {"path": "."}, ". is a folder"),
        ("read_file", {"path": "poem", "first_line": 9}, "poem has 4 lines"),
        ("read_file", {"path": "/dev/zero"}, "no regular file"),
        ("read_file", {"path": "big"}, "at most 262144 can be read"),
        ("read_file", {"path": "binary"}, "binary is not UTF-8 text"),
        ("read_file", {"path": "a\0b"}, "there is no file a"),
        ("create_file", {"path": "poem", "content": ""}, "poem exists already"),
        ("create_file", {"path": "/usr/x", "content": ""}, "Read-only file system"),
        ("create_file", {"path": "poem/x", "content": ""}, "poem"),
        ("create_file", {"path": "new", "content": "x" * 300_000}, "at most 262144 are allowed"),
        ("edit_file", {"path": "poem", "old": "two", "new": ""}, "old occurs 2 times in poem, in lines 2, 4"),
        ("edit_file", {"path": "poem", "old": "four", "new": ""}, "old occurs 0 times in poem, and must occur once"),
        ("edit_file", {"path": "poem", "old": "", "new": ""}, "old is empty"),
        ("grep", {"pattern": "("}, "no regular expression"),
        ("grep", {"pattern": "x", "path": "none"}, "there is no none"),
        ("list_files", {"path": "poem"}, "poem is no folder"),
    ],
)
async def test_what_cannot_be_done_says_why(workspace, name, arguments, message):
    await workspace("run_shell", command="printf 'one\\ntwo\\nthree\\ntwo\\n' > poem; head -c 300000 /dev/zero > big")
    await workspace("run_shell", command="printf '\\377' > binary")
    result = await workspace(name, **arguments)
    assert message in (result.error or "")
    assert result.observation.startswith("Error: ")
    assert (await workspace("run_shell", command="cat poem")).observation == POEM.strip()


async def test_overwriting_can_be_taken_back(workspace):
    await workspace("create_file", path="a", content="old")
    await workspace("create_file", path="a", content="new", overwrite=True)
    await workspace("undo_edit")
    assert (await workspace("read_file", path="a")).observation == "1\told"


async def test_part_of_a_file(workspace):
    await workspace("create_file", path="a", content=POEM)
    assert (await workspace("read_file", path="a", first_line=2, last_line=3)).observation == (
        "2\ttwo\n3\tthree\n[lines 4 to 4 are not shown]"
    )


async def test_lists(workspace):
    await workspace("run_shell", command="mkdir -p d/e/f; echo hi > d/x; ln -s /etc link")
    assert (await workspace("list_files")).observation == "d/\nd/e/\nd/x  3 bytes\nlink -> /etc"
    assert (await workspace("list_files", depth=1)).observation == "d/\nlink -> /etc"
    await workspace("run_shell", command="chmod 0 d/e && mkdir f && touch f/y")
    assert (await workspace("list_files")).observation == "d/\nd/e/\nd/x  3 bytes\nf/\nf/y  0 bytes\nlink -> /etc"
    assert (await workspace("list_files", path="d/e")).error is not None
    await workspace("run_shell", command="cd d; for i in $(seq 600); do echo > $i; done")
    assert (await workspace("list_files", path="d")).observation.endswith("[only the first 500 are shown]")


async def test_grep(workspace):
    await workspace(
        "run_shell", command="mkdir d; echo 'def f(x):' > d/a.py; echo 'def g():' > b.py; printf '\\377def' > c"
    )
    assert (await workspace("grep", pattern=r"def \w\(x?\)")).observation == "b.py:1:def g():\nd/a.py:1:def f(x):"
    assert (await workspace("grep", pattern="def", path="b.py")).observation == "b.py:1:def g():"
    assert (await workspace("grep", pattern="nothing")).observation == "(no match)"


async def test_the_interpreter_sees_the_same_files(workspace):
    await workspace("create_file", path="data.csv", content="1,2\n")
    assert (await workspace("code_interpreter", code="open('data.csv').read()")).observation == "'1,2\\n'"


async def test_a_pattern_that_never_ends_is_stopped(workspace):
    await workspace("create_file", path="a", content="a" * 60 + "!")
    result = await workspace("code_interpreter", code="1")
    slow = TOOLS["grep"].with_settings({"seconds": 1})
    context = ToolContext(trajectory_id="g/1", group_id="g", problem=Problem(id="p", messages=()))
    calls = [
        ToolCall(id="0", name="create_file", arguments={"path": "a", "content": "a" * 60 + "!"}),
        ToolCall(id="1", name="grep", arguments={"pattern": "(a+)+$"}),
    ]
    results = await execute_calls(calls, {**TOOLS, "grep": slow}, context, default_timeout=30, max_chars=999)
    await context.resources.aclose()
    assert results[1].error == "grep took longer than 1 s and was stopped."
    assert result.observation == "1"


class TestShell:
    async def test_output_and_exit_code(self, workspace):
        result = await workspace("run_shell", command="echo out; echo err >&2; exit 3")
        assert result.observation == "out\nstderr:\nerr\n[The command ended with exit code 3.]"
        assert result.error == "The command ended with exit code 3."
        assert (await workspace("run_shell", command="true")).observation == "(no output)"

    async def test_a_command_out_of_time_is_killed_and_files_stay(self):
        shell = TOOLS["run_shell"].with_settings({"seconds": 1})
        context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))
        seen = []
        for command in ("echo kept > a; setsid sleep 1000 & wait", "cat a; ps ax | grep -c '[s]leep 1000'"):
            calls = [ToolCall(id="0", name="run_shell", arguments={"command": command})]
            seen += await execute_calls(calls, {"run_shell": shell}, context, default_timeout=30, max_chars=999)
        await context.resources.aclose()
        assert "ran longer than 1 s" in (seen[0].error or "")
        assert seen[1].observation.splitlines()[:2] == ["kept", "0"]

    @pytest.mark.parametrize("path", ["/etc/shadow", "../../etc/shadow", "link/shadow", "/proc/1/root/etc/shadow"])
    async def test_no_path_leads_out(self, workspace, path):
        await workspace("run_shell", command="ln -s /etc link")
        assert (await workspace("read_file", path=path)).error
        assert (await workspace("run_shell", command=f"cat {path}")).error

    async def test_two_trajectories_share_no_files(self, workspace):
        await workspace("run_shell", command="echo secret > a")
        other = ToolContext(trajectory_id="g/1", group_id="g", problem=Problem(id="p", messages=()))
        calls = [ToolCall(id="0", name="list_files", arguments={})]
        (result,) = await execute_calls(calls, TOOLS, other, default_timeout=30, max_chars=999)
        await other.resources.aclose()
        assert result.observation == "(empty)"
