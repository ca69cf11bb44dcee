"""Code blocks: all Python of a reply is one program; what is not closed, empty or cut is not run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.chat import MalformedCall, ToolCall
from agentfly_lib.chat.code_block import CodeBlockParser


def parse(text: str):
    return CodeBlockParser(tool="run", argument="program").parse(text)


def program(text: str) -> str:
    (call,) = parse(text).calls
    assert isinstance(call, ToolCall)
    assert call.name == "run"
    return call.arguments["program"]


def test_a_block_is_a_call():
    reply = parse("Let me see.\n```python\nprint(6 * 7)\n```\n")
    assert reply.calls == (ToolCall(id="call-0", name="run", arguments={"program": "print(6 * 7)\n"}),)
    assert reply.content == "Let me see."


def test_several_blocks_are_one_program_in_order():
    assert program("```python\na = 1\n```\nand then\n```py\nprint(a)\n```") == "a = 1\n\nprint(a)\n"


@pytest.mark.parametrize(
    "opening", ["```python", "```Python", "``` py", "```python3", "````python", '```python title="x"', "  ```python"]
)
def test_openings(opening):
    ticks = opening.strip().count("`")
    assert program(f"{opening}\nx\n{'`' * ticks}") == "x\n"


def test_a_longer_fence_may_hold_a_shorter_one():
    assert program("````python\ns = '''\n```\n'''\n````") == "s = '''\n```\n'''\n"


def test_ticks_inside_a_line_close_nothing():
    assert program('```python\nprint("```")\n```') == 'print("```")\n'


@pytest.mark.parametrize(
    "text", ["The answer is 42.", "```\nx\n```", "```json\n{}\n```", "```bash\nls\n```", "`python`", "", "```text\n"]
)
def test_without_a_python_block_it_is_the_final_reply(text):
    reply = parse(text)
    assert reply.calls == ()
    assert reply.content == text.strip()


def test_python_inside_a_block_of_another_language_is_text():
    assert parse("````markdown\n```python\nx\n```\n````").calls == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\nprint(1)", "not closed"),
        ("```python", "not closed"),
        ("```python\na\n```\n```python\nb", "not closed"),
        ("````python\nprint(1)\n```", "not closed"),
        ("```python\n\n```", "is empty"),
    ],
)
def test_what_is_not_run(text, expected):
    (call,) = parse(text).calls
    assert isinstance(call, MalformedCall)
    assert expected in call.message


def test_code_that_the_model_only_thinks_of_is_not_run():
    assert parse("<think>\n```python\nx\n```\n</think>\nDone.").calls == ()


@given(
    st.lists(st.sampled_from(["```", "`", "python", "\n", " ", "x"]) | st.text(max_size=2), max_size=30).map("".join)
)
def test_any_text_is_taken_apart(text):
    assert len(parse(text).calls) <= 1
