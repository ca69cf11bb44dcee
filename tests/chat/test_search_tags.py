"""Search tags: searches run together, answers end, and whatever cannot be taken is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.chat import MalformedCall, ToolCall
from agentfly_lib.chat.search_tags import SearchTagParser


def parse(text: str):
    return SearchTagParser(tool="find", argument="q").parse(text)


def queries(text: str) -> list[str | None]:
    """What is searched for, in order; None for what was refused."""
    return [call.arguments["q"] if isinstance(call, ToolCall) else None for call in parse(text).calls]


def test_a_search():
    reply = parse("<think>Who?</think> <search> author of Dune </search>")
    assert reply.calls == (ToolCall(id="call-0", name="find", arguments={"q": "author of Dune"}),)
    assert reply.content == "<think>Who?</think>"


def test_an_answer_ends_and_is_the_content():
    reply = parse("<think>Herbert.</think><answer> Frank Herbert </answer> done")
    assert reply.calls == ()
    assert reply.content == "Frank Herbert"


def test_several_searches_are_all_run():
    assert queries("<search>a</search> and <search>b</search>") == ["a", "b"]


def test_a_search_after_an_answer_does_not_undo_it():
    assert parse("<answer>x</answer><search>y</search>").calls == ()


def test_an_answer_after_a_search_has_not_seen_the_results():
    text = "<search>a</search><information>made up</information><answer>b</answer>"
    assert queries(text) == ["a", None]
    assert "before the results" in parse(text).calls[1].message


def test_tags_in_reasoning_are_thoughts():
    assert queries("<think><search>no</search></think><search>yes</search>") == ["yes"]
    assert queries("<think>never ends <search>yes</search>") == ["yes"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "neither a search nor an answer"),
        ("Paris", "neither a search nor an answer"),
        ("<search></search>", "The search is empty"),
        ("<search>a", "</search> is missing"),
        ("<answer>a", "</answer> is missing"),
        ("<search>a</answer>", "</search> is missing"),
        ("<SEARCH>a</SEARCH>", "neither a search nor an answer"),
    ],
)
def test_what_cannot_be_taken_is_named(text, expected):
    (call,) = parse(text).calls
    assert isinstance(call, MalformedCall)
    assert expected in call.message


def test_an_opening_inside_an_open_one_begins_anew():
    assert queries("<search>a <search>b</search>") == [None, "b"]


tags = st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "a", " "])


@given(st.lists(tags | st.text(max_size=2), max_size=20).map("".join))
def test_any_text_is_taken_apart(text):
    reply = parse(text)
    assert [call.id for call in reply.calls] == [f"call-{index}" for index in range(len(reply.calls))]
    assert reply.calls or "</answer>" in text
