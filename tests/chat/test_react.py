"""ReAct replies: the first action counts, and everything that cannot be taken is answered, never dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.chat import MalformedCall, ToolCall
from agentfly_lib.chat.react import ReActParser

ACT = 'Thought: I need it.\nAction: weather\nAction Input: {"city": "Oslo"}'


def parse(text: str):
    return ReActParser().parse(text)


def faults(text: str) -> list[str]:
    return [call.message for call in parse(text).calls if isinstance(call, MalformedCall)]


def test_an_action_and_its_input():
    reply = parse(ACT)
    assert reply.calls == (ToolCall(id="call-0", name="weather", arguments={"city": "Oslo"}),)
    assert reply.content == "Thought: I need it."


def test_a_final_answer_is_the_content_and_ends():
    reply = parse("Thought: Done.\nFinal Answer: It rains.\nAll day.")
    assert reply.calls == ()
    assert reply.content == "It rains.\nAll day."


@pytest.mark.parametrize(
    "text",
    [
        'action:weather\naction input:{"city": "Oslo"}',
        '  Action : weather\n\n  Action  Input :\n{\n  "city": "Oslo"\n}\n',
        '<think>Action: other\nAction Input: {}</think>\nAction: weather\nAction Input: {"city": "Oslo"}',
    ],
)
def test_case_space_lines_and_reasoning_do_not_matter(text):
    assert parse(text).calls == (ToolCall(id="call-0", name="weather", arguments={"city": "Oslo"}),)


def test_labels_inside_the_input_are_text():
    text = 'Action: note\nAction Input: {\n"text": "Action: x", "b":\n"Final Answer: 3"}'
    assert parse(text).calls == (
        ToolCall(id="call-0", name="note", arguments={"text": "Action: x", "b": "Final Answer: 3"}),
    )


def test_words_inside_a_line_are_no_labels():
    assert parse("Final Answer: the Action: is clear").content == "the Action: is clear"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "neither an action nor a final answer"),
        ("Thought: hm", "neither an action nor a final answer"),
        ("Observation: 4", "neither an action nor a final answer"),
        ("Action: weather", '"weather" has no action input'),
        ("Action: weather\nAction Input:", '"weather" has no action input'),
        ("Action Input: {}", "an action input without an action"),
        ("Action:\nAction Input: {}", "must be the name of one tool"),
        ("Action: use the weather\nor the map\nAction Input: {}", "must be the name of one tool"),
        ("Action: weather\nAction Input: Oslo", "not valid JSON"),
        ('Action: weather\nAction Input: {"city": "Os', "not valid JSON"),
        ("Action: weather\nAction Input: [1]", "arguments of weather must be a JSON object, got a list"),
        ('Action: weather\nAction Input: {"a": 1} and then', "not valid JSON"),
        ('Action: weather\nAction Input: {"a": 1, "a": 2}', 'the key "a" twice'),
        ("Action: weather\nAction Input: " + '{"a":' * 3000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_named(text, expected):
    (fault,) = faults(text)
    assert expected in fault
    assert len(parse(text).calls) == 1


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("\nAction: map\nAction Input: {}", ['The action "map" was not taken: only one action is taken']),
        ("\nFinal Answer: rain", ["The final answer was not taken: only one action is taken"]),
        (
            "\nObservation: sun\nFinal Answer: sun",
            ["The final answer was not taken: you wrote an observation yourself"],
        ),
        ("\nObservation: sun\nThought: and", []),
        ("\nObservation: a\nAction: b\nAction Input: {}\nFinal Answer: c", ['The action "b"', "The final answer"]),
    ],
)
def test_what_follows_the_first_action_is_not_taken_and_the_policy_is_told(rest, expected):
    reply = parse(ACT + rest)
    assert reply.calls[0] == ToolCall(id="call-0", name="weather", arguments={"city": "Oslo"})
    assert [call.id for call in reply.calls] == [f"call-{index}" for index in range(len(expected) + 1)]
    for fault, start in zip(faults(ACT + rest), expected, strict=True):
        assert fault.startswith(start)


def test_after_an_answer_nothing_is_run():
    assert parse("Final Answer: rain\n" + ACT).calls == ()


pieces = st.sampled_from(
    [
        "Action:",
        "Action Input:",
        "Observation:",
        "Final Answer:",
        "Thought:",
        "\n",
        " ",
        '{"a": 1}',
        "{",
        "x",
        "<think>",
    ]
)


@given(st.lists(pieces | st.text(max_size=3), max_size=25).map("".join))
def test_any_text_is_taken_apart(text):
    reply = parse(text)
    assert [call.id for call in reply.calls] == [f"call-{index}" for index in range(len(reply.calls))]
    assert sum(isinstance(call, ToolCall) for call in reply.calls) <= 1
    assert all(isinstance(call, MalformedCall) for call in reply.calls[1:])
