"""Rows become problems, or an error that names each bad one and what is expected."""

from __future__ import annotations

import base64
import json

import pytest

from agentfly_lib.data.validate import RowFormat, build_problems
from agentfly_lib.errors import DataError
from agentfly_lib.rows.sources import Row
from agentfly_lib.types import RESERVED_COLUMNS
from tests.chat.vision_models import png


def build(*rows, max_errors=5, **names):
    found = [Row(source="f.jsonl", unit="line", number=number, values=row) for number, row in enumerate(rows, start=1)]
    sourced = build_problems(found, RowFormat(**names), source="f.jsonl", max_errors=max_errors)
    return [each.problem for each in sourced]


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


USER = {"role": "user", "content": "hi"}


class TestGoodRows:
    def test_a_question_becomes_a_user_message_and_the_rest_are_free_columns(self):
        (problem,) = build({"question": "2 + 2?", "answer": "4", "meta": {"level": 1}})
        assert problem.messages == ({"role": "user", "content": "2 + 2?"},)
        assert problem.columns == {"answer": "4", "meta": {"level": 1}}

    def test_a_conversation_is_taken_as_it_is(self):
        messages = [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "5", "tool_call_id": "1"},
        ]
        (problem,) = build({"messages": messages, "answer": 4})
        assert list(problem.messages) == messages
        assert problem.columns == {"answer": 4}

    def test_parts_of_a_message(self):
        picture = f"data:image/png;base64,{base64.b64encode(png(8, 8)).decode()}"
        content = [{"type": "text", "text": "what is this?"}, {"type": "image", "image": picture}]
        (problem,) = build({"messages": [{"role": "user", "content": content}]})
        assert problem.messages[0]["content"] == content

    def test_a_conversation_goes_before_a_question_which_then_is_a_free_column(self):
        (problem,) = build({"messages": [USER], "question": "q"})
        assert problem.messages == (USER,)
        assert problem.columns == {"question": "q"}

    def test_an_empty_messages_column_beside_a_question_is_no_column(self):
        (problem,) = build({"messages": None, "question": "q"})
        assert problem.columns == {}

    def test_columns_of_other_names(self):
        (problem,) = build({"problem": "q", "answer": "4"}, question_column="problem")
        assert problem.messages[0]["content"] == "q"
        (problem,) = build({"chat": '[{"role": "user", "content": "as JSON text"}]'}, messages_column="chat")
        assert problem.messages[0]["content"] == "as JSON text"

    def test_ids_are_the_rows_own_or_follow_from_the_content(self):
        own, number, one, same, other = build(
            {"question": "q", "id": "x-1"},
            {"question": "q", "id": 7},
            {"question": "q", "n": 1},
            {"n": 1, "question": "q"},
            {"question": "q", "n": 2},
        )
        assert (own.id, number.id) == ("x-1", "7")
        assert own.columns == {"id": "x-1"}
        assert one.id == same.id != other.id
        assert len(one.id) == 16


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"text": "q"},
            r"expected the column 'question' \(text\) or 'messages' .* found 'text'; name yours with data\.q",
        ),
        ({}, "found no columns"),
        ({"question": 5}, "column 'question': expected text, got 5"),
        ({"question": None}, "column 'question': expected text, got null"),
        ({"question": " \n"}, "column 'question': expected text, it is empty"),
        ({"messages": []}, r"column 'messages': expected a list of messages that is not empty, got \[\]"),
        ({"messages": "hi"}, "got text that is not JSON"),
        ({"messages": {"role": "user"}}, "expected a list of messages"),
        ({"messages": ["hi"]}, r'messages\[0\]: expected an object with role and content, got "hi"'),
        ({"messages": [USER, {"role": "human", "content": "x"}]}, r"messages\[1\]\.role: expected one of system, user"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            r"messages\[0\]\.content: expected text or a list of parts, got 3",
        ),
        (
            {"messages": [{"role": "user", "content": ["x"]}]},
            r"messages\[0\]\.content\[0\]: expected an object with a type",
        ),
        ({"messages": [{"role": "user", "content": ""}]}, r"messages\[0\]\.content: expected text, it is empty"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content: expected text or a list of parts, got null"),
        ({"messages": [USER, {"role": "system", "content": "x"}]}, "a system message may only stand first"),
        (
            {"messages": [{"role": "system", "content": "x"}]},
            "expected at least one user message, the roles are system",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": "x"}]},
            "must be for the agent to answer, its role is 'assist",
        ),
        ({"question": "q", "id": 1.5}, "column 'id': expected text or a whole number, got 1.5"),
        ({"question": "q", "id": "\ud800"}, "is not valid Unicode text"),
        ({"question": "half \ud800"}, "column 'question': holds half of a surrogate pair"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, r"messages\[0\]: holds half of a surrogate pair"),
        ({"messages": [USER | {"name": "\ud800"}]}, r"messages\[0\]: holds half of a surrogate pair"),
        ({"question": "q", "tree": nested(101)}, "nested more than 100 deep"),
        ({"messages": json.dumps([USER | {"tree": nested(600)}])}, "nested more than 100 deep"),
        ({"messages": "[" * 100_000}, "got text that is not JSON"),
        *(
            ({"question": "q", name: 1}, f"the column '{name}' has a name that the rollout itself gives")
            for name in sorted(RESERVED_COLUMNS - {"messages"})
        ),
    ],
)
def test_a_bad_row_is_named_with_what_is_expected(row, message):
    with pytest.raises(DataError, match=rf"(?s)f\.jsonl: 1 of 2 rows cannot be used\n  - f\.jsonl line 2: .*{message}"):
        build({"question": "fine"}, row)


def test_what_is_nested_less_is_kept():
    (row,) = build({"question": "q", "tree": nested(90)})
    assert row.columns["tree"] == nested(90)


def test_messages_is_reserved_when_the_conversation_lies_elsewhere():
    with pytest.raises(DataError, match="the column 'messages' has a name"):
        build({"chat": [USER], "messages": [USER]}, messages_column="chat")


def test_bad_rows_are_listed_up_to_the_limit_and_all_are_counted():
    with pytest.raises(DataError) as error:
        build(*({"question": None} for _ in range(9)), {"question": "fine"}, max_errors=2)
    assert str(error.value).splitlines() == [
        "f.jsonl: 9 of 10 rows cannot be used",
        "  - f.jsonl line 1: column 'question': expected text, got null",
        "  - f.jsonl line 2: column 'question': expected text, got null",
        "  ... and 7 more",
    ]


def test_an_id_that_stands_twice_names_both_rows():
    with pytest.raises(DataError, match=r"f\.jsonl line 3: the id 'a' stands at f\.jsonl line 1 already"):
        build({"question": "q", "id": "a"}, {"question": "r", "id": "b"}, {"question": "s", "id": "a"})


def test_an_empty_split():
    with pytest.raises(DataError, match=r"f\.jsonl has no rows; a split needs at least one"):
        build()
