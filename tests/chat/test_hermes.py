"""Calls are read as they were meant or refused with a message that names the culprit; never repaired, never dropped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.chat import HermesParser, MalformedCall, ToolCall

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc<>/_", max_size=5), inner, max_size=3),
    max_leaves=8,
)


def parse(text: str):
    return HermesParser().parse(text)


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def refusal(text: str) -> str:
    (malformed,) = parse(text).calls
    assert isinstance(malformed, MalformedCall)
    return malformed.message


class TestWellFormed:
    def test_no_call_is_text(self):
        reply = parse("  The answer is 4.\n")
        assert reply.content == "The answer is 4."
        assert reply.calls == ()

    def test_one_call_with_text_around(self):
        reply = parse("Let me see. " + call('{"name": "calculator", "arguments": {"expression": "2+2"}}') + " Done.")
        assert reply.content == "Let me see.  Done."
        assert reply.calls == (ToolCall(id="call-0", name="calculator", arguments={"expression": "2+2"}),)

    def test_several_calls_keep_their_order_and_get_their_own_ids(self):
        reply = parse("".join(call(json.dumps({"name": name, "arguments": {}})) for name in "abc"))
        assert [(c.id, c.name) for c in reply.calls] == [("call-0", "a"), ("call-1", "b"), ("call-2", "c")]

    @pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", "</tool_call><tool_call>", "{", '"'])
    def test_tags_inside_a_string_argument_end_nothing(self, text):
        arguments = {"code": f"print('{text}')"}
        reply = parse(call(json.dumps({"name": "run", "arguments": arguments})) + "rest")
        assert reply.calls == (ToolCall(id="call-0", name="run", arguments=arguments),)
        assert reply.content == "rest"

    @given(arguments=st.dictionaries(st.text("abc", min_size=1), json_values, max_size=3), compact=st.booleans())
    def test_any_arguments_come_back_as_they_were(self, arguments, compact):
        separators = (",", ":") if compact else None
        body = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=not compact, separators=separators)
        assert parse(call(body)).calls == (ToolCall(id="call-0", name="f", arguments=arguments),)

    def test_reasoning_is_not_searched(self):
        thought = "<think>I could write <tool_call>{}</tool_call></think>"
        reply = parse(thought + call('{"name": "f", "arguments": {}}'))
        assert [c.id for c in reply.calls] == ["call-0"]
        assert isinstance(reply.calls[0], ToolCall)

    def test_reasoning_may_have_begun_in_the_prompt(self):
        reply = parse("hm</think>" + call('{"name": "f", "arguments": {}}'))
        assert isinstance(reply.calls[0], ToolCall)
        assert reply.content == "hm</think>"

    @pytest.mark.parametrize("before", ["<think>never closed ", "<think>", "some <think> inside "])
    def test_reasoning_that_does_not_end_hides_no_call(self, before):
        assert isinstance(parse(before + call('{"name": "f", "arguments": {}}')).calls[0], ToolCall)

    def test_its_closing_tag_inside_an_argument_hides_no_call(self):
        assert parse(call('{"name": "f", "arguments": {"x": "</think>"}}')).calls[0] == ToolCall(
            id="call-0", name="f", arguments={"x": "</think>"}
        )


class TestRefused:
    @pytest.mark.parametrize(
        ("body", "culprit"),
        [
            ('{"name": "f", "arguments": {}', "not valid JSON"),
            ("{'name': 'f'}", "double quotes"),
            ("", "not valid JSON"),
            ('["f"]', "is a JSON list, expected an object"),
            ('"f"', "is a JSON string"),
            ("3", "is a JSON number"),
            ("null", "is a JSON null"),
            ('{"arguments": {}}', 'has no "name" (its keys: "arguments")'),
            ("{}", 'has no "name" (it is empty)'),
            ('{"name": 3, "arguments": {}}', '"name" of the tool call must be the name of a tool, got 3'),
            ('{"name": "", "arguments": {}}', "must be the name of a tool"),
            ('{"name": "f"}', 'f has no "arguments"'),
            ('{"name": "f", "arguments": "{}"}', "must be a JSON object, got a string"),
            ('{"name": "f", "arguments": null}', "must be a JSON object, got a null"),
            ('{"name": "f", "arguments": [1]}', "must be a JSON object, got a list"),
            ('{"name": "f", "arguments": {}, "x": 1}', 'unknown key "x"'),
            ('{"name": "f", "arguments": {"a": 1, "a": 2}}', 'the key "a" twice'),
            ('{"name": "f", "arguments": {"a": NaN}}', "NaN, which is not a JSON number"),
            ('{"name": "f", "arguments": {"a": "\\ud800"}}', "half of a pair"),
            ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "number that is too long"),
            ('{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}", "nested too deeply"),
            ('{"name": "f", "arguments": {"a": ' + "[" * 60 + "]" * 60 + "}}", "nested too deeply"),
            ('{"name": "f", "arguments": {}} trailing', "not valid JSON"),
        ],
    )
    def test_each_fault_has_its_own_message(self, body, culprit):
        assert culprit in refusal(call(body))

    def test_a_bad_call_does_not_take_a_good_one_with_it(self):
        reply = parse(call("{bad}") + call('{"name": "f", "arguments": {}}') + call("[]"))
        assert [type(c) for c in reply.calls] == [MalformedCall, ToolCall, MalformedCall]
        assert [c.id for c in reply.calls] == ["call-0", "call-1", "call-2"]

    def test_the_raw_text_is_kept(self):
        (malformed,) = parse(call("{bad}")).calls
        assert malformed.raw.strip() == "{bad}"


class TestCut:
    @pytest.mark.parametrize("length", range(len("<tool_call>"), len(call('{"name": "f", "arguments": {}}')) - 1))
    def test_a_call_without_its_end_is_never_a_call(self, length):
        text = call('{"name": "f", "arguments": {}}')[:length]
        assert "</tool_call> is missing" in refusal(text)

    def test_a_call_opened_again_before_its_end(self):
        reply = parse('<tool_call>{"name": "f" <tool_call>{"name": "g", "arguments": {}}</tool_call>')
        assert [type(c) for c in reply.calls] == [MalformedCall, ToolCall]

    @given(st.text('<tool_call>/{}"name:f \n', max_size=60))
    def test_any_text_can_be_parsed(self, text):
        reply = parse(text)
        assert [c.id for c in reply.calls] == [f"call-{i}" for i in range(len(reply.calls))]
