"""What every tool-call format has in common: calls come back as they were written, in order, or are refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentfly_lib.chat import ToolCall, get_parser, parser_names
from agentfly_lib.chat.stream_parser import StreamParser
from agentfly_lib.errors import ConfigError

Call = tuple[str, Mapping[str, Any]]

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "flag": {"type": "boolean"},
                "items": {"type": "array"},
                "table": {"type": "object"},
            },
        },
    },
}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {_dumps(arguments)}}}\n</tool_call>'
        for name, arguments in calls
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _dumps(value)


def qwen3_coder(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def glm(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def llama_json(calls: Sequence[Call]) -> str:
    return "; ".join(_dumps({"name": name, "parameters": arguments}) for name, arguments in calls)


def pythonic(calls: Sequence[Call]) -> str:
    written = (f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls)
    return f"[{', '.join(written)}]"


def mistral(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS]" + _dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_dumps(arguments)}" for name, arguments in calls)


def deepseek(calls: Sequence[Call]) -> str:
    written = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(written) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call]) -> str:
    written = (
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_dumps(arguments)}<｜tool▁call▁end｜>" for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "".join(written) + "<｜tool▁calls▁end｜>"


def harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_dumps(arguments)}<|call|>"
        for name, arguments in calls
    )


WRITERS = {
    "hermes": hermes,
    "qwen3-coder": qwen3_coder,
    "glm": glm,
    "llama-json": llama_json,
    "pythonic": pythonic,
    "mistral": mistral,
    "mistral-named": mistral_named,
    "deepseek": deepseek,
    "deepseek-v3.1": deepseek_v31,
    "harmony": harmony,
}
"""By parser; a second form of the same parser has a name of its own."""

PARSER_OF = {"mistral-named": "mistral", "deepseek-v3.1": "deepseek"}

SETTINGS = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FORMATS = list(WRITERS)

words = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="<[{｜"), max_size=12)
hostile = st.sampled_from(
    [
        "</tool_call>",
        "<tool_call>",
        "[TOOL_CALLS]",
        "</think>",
        '"}}',
        "<|call|>",
        "]",
        ")",
        "'''",
        '\\"',
        "<｜tool▁call▁end｜>",
        "\n",
        "é世🎉",
        "</parameter>",
        "</arg_value>",
        ";",
    ]
)
texts = st.lists(words | hostile, max_size=3).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | texts | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=2),
    max_leaves=4,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "n": st.none() | st.integers(-(10**12), 10**12),
        "flag": st.booleans(),
        "items": st.lists(values, max_size=3),
        "table": st.dictionaries(st.text("abc", max_size=3), values, max_size=2),
    },
)
calls = st.lists(st.tuples(st.sampled_from(["f", "other_tool"]), arguments), min_size=1, max_size=3)
alphabet = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<parameter=x>",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<|channel|>",
        "analysis",
        "final",
        "commentary",
        "to=functions.f",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|start|>assistant",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<think>",
        "</think>",
        "{",
        "}",
        "[",
        "]",
        '"name"',
        ":",
        '"f"',
        ",",
        '"arguments"',
        '"parameters"',
        '{"name":"f","arguments":{}}',
        "f(",
        ")",
        "x=1",
        ";",
        "[f(x=1)]",
        "function",
        "```json",
        "```",
        "text",
    ]
) | st.sampled_from([" ", "\n", "<", "<|", "<t", "[T"])
soups = st.lists(alphabet, max_size=14).map("".join)


def parser(form: str):
    return get_parser(PARSER_OF.get(form, form), [TOOL])


def written(form: str, items, before: str = "") -> str:
    """Calls behind some text, as the format has it."""
    markup = WRITERS[form](items)
    if not before:
        return markup
    if form == "harmony":
        return f"<|channel|>commentary<|message|>{before}<|end|><|start|>assistant{markup}"
    return f"{before}\n{markup}"


@pytest.mark.parametrize("form", FORMATS)
class TestEveryFormat:
    @SETTINGS
    @given(items=calls, before=st.sampled_from(["", "Let me see.", "é世🎉"]))
    def test_calls_come_back_in_order_with_the_text_before_them(self, form, items, before):
        if form in ("qwen3-coder", "glm"):  # these can write only what their tags leave unambiguous
            items = [("f", arguments) for _, arguments in items]
            assume(not any("</" in str(arguments.get("text", "")) for _, arguments in items))
            assume(not any(str(a.get("text", "")).startswith("\n") for _, a in items))
        reply = parser(form).parse(written(form, items, before))
        assert [(call.name, dict(call.arguments)) for call in reply.calls] == [(n, dict(a)) for n, a in items]
        assert reply.content == before

    def test_a_call_without_its_end_is_never_executed(self, form):
        """Whatever the engine says about why it stopped."""
        text = WRITERS[form]([("f", {"text": "abc", "n": 12})])
        enough = len(text.rstrip("<|cal>")) if form == "harmony" else len(text)  # there the stop token is the end
        for cut in range(enough):
            found = parser(form).parse(text[:cut]).calls
            complete = form in ("mistral-named",) or (form.startswith("deepseek") and text[:cut].count("call▁end｜>"))
            assert complete or not any(isinstance(call, ToolCall) for call in found), text[:cut]

    def test_ids_are_unique_and_text_is_no_call(self, form):
        reply = parser(form).parse("The answer is 4 [see {1}] <b>")
        assert (reply.content, reply.calls) == ("The answer is 4 [see {1}] <b>", ())
        found = parser(form).parse(WRITERS[form]([("f", {})] * 3)).calls
        assert len({call.id for call in found}) == 3

    @SETTINGS
    @given(text=soups)
    def test_any_text_can_be_parsed(self, form, text):
        reply = parser(form).parse(text)
        assert [call.id for call in reply.calls] == [parser(form).call_id(i) for i in range(len(reply.calls))]

    @SETTINGS
    @given(text=soups, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9))
    def test_streamed_text_is_parsed_as_at_once(self, form, text, sizes):
        check_stream(form, text, pieces(text, sizes))

    @SETTINGS
    @given(items=calls, before=st.sampled_from(["", "Hm. ", "<think>a\nb</think>\n\n", "a</think>"]))
    def test_every_split_of_a_reply_gives_the_same(self, form, items, before):
        text = written(form, items, before)
        check_stream(form, text, list(text))
        for cut in range(0, len(text), 1 + len(text) // 15):
            check_stream(form, text, [text[:cut], text[cut:]])

    @pytest.mark.parametrize("before", ["", "Let me see.", "<think>a</think>\n\nSo: "])
    def test_all_splits_in_two_and_single_characters(self, form, before):
        text = written(form, [("f", {"text": 'a "b" <c>', "n": 1}), ("f", {})], before)
        for cut in range(len(text) + 1):
            check_stream(form, text, [text[:cut], text[cut:]])
        check_stream(form, text, list(text))


def pieces(text: str, sizes: list[int]) -> list[str]:
    found, position, turn = [], 0, 0
    while position < len(text):
        size = sizes[turn % len(sizes)]
        found.append(text[position : position + size])
        position, turn = position + size, turn + 1
    return found


def check_stream(form: str, text: str, deltas: list[str]) -> None:
    """Content deltas join to the content, at every moment a beginning of it, so no markup is ever among them."""
    expected = parser(form).parse(text)
    stream, shown = StreamParser(parser(form)), ""
    for delta in deltas:
        shown += stream.push(delta)
        assert expected.content.startswith(shown), (text, deltas)
    rest, reply = stream.finish()
    assert reply == expected
    assert shown + rest == expected.content, (text, deltas)


def test_content_is_streamed_before_its_end_is_known():
    stream = StreamParser(get_parser("hermes"))
    assert stream.push("  The answer") == "The answer"
    assert stream.push(" is <b") == " is <b"
    assert stream.push("> <tool") == ">"
    assert stream.push("box> ") == " <toolbox>"
    assert stream.finish()[0] == ""


def test_the_answer_of_harmony_is_streamed():
    stream = StreamParser(get_parser("harmony"))
    thought = "<|channel|>analysis<|message|>I know.<|end|><|start|>assistant<|channel|>final<|message|>"
    assert stream.push(thought) == ""
    assert stream.push("It is") == "It is"
    rest, reply = stream.finish()
    assert (rest, reply.content, reply.reasoning) == ("", "It is", "I know.")


def test_unknown_names_are_answered_with_the_nearest():
    assert {PARSER_OF.get(form, form) for form in FORMATS} == set(parser_names())
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        get_parser("hermse")


class TestIds:
    def test_what_the_model_calls_its_calls_is_kept_where_it_can_be_an_id(self):
        text = (
            '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefghi"}, {"name": "g", "arguments": {}, "id": "1"}]'
        )
        assert [call.id for call in get_parser("mistral").parse(text).calls] == [
            "abcdefghi",
            "call00001",
        ]
        named = "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}"
        assert [call.id for call in get_parser("mistral").parse(named).calls] == [
            "abcdefghi",
            "call00001",
        ]
