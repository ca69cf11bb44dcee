"""Long hostile replies: read in time that grows with their length alone, and with no more calls than are allowed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest

from agentfly_lib.chat import MalformedCall, StreamParser, get_parser
from agentfly_lib.chat.blocks import MAX_CALLS, MAX_PARAMETERS, CallParser
from agentfly_lib.chat.code_block import CodeBlockParser
from agentfly_lib.chat.gui_action import GuiActionParser, Screen
from agentfly_lib.chat.react import ReActParser
from agentfly_lib.chat.search_tags import SearchTagParser

SEP, OPEN = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>"
TO = "<|channel|>commentary to=functions.f"

OTHERS: dict[str, CallParser] = {
    "react": ReActParser(),
    "code": CodeBlockParser(),
    "search": SearchTagParser(),
    "gui": GuiActionParser(Screen()),
}

UNITS = [
    ("hermes", "<tool_call>"),
    ("hermes", '<tool_call>[1,"'),
    ("hermes", "<tool_call>1 </tool_call"),
    ("qwen3-coder", "<function="),
    ("qwen3-coder", "<tool_call><function=f>"),
    ("qwen3-coder", "<function=f><parameter=x>1</parameter>"),
    ("qwen3-coder", "<tool_call><function=f><parameter=x>1</parameter>\n<parameter=y>"),
    ("glm", "<tool_call>f<arg_key>"),
    ("glm", "<tool_call>f<arg_key>x</arg_key>"),
    ("glm", "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value><arg_key>y</arg_key><arg_value>"),
    ("llama-json", '{"name": 1};\n'),
    ("llama-json", '{"name"\n'),
    ("pythonic", "\n[f("),
    ("pythonic", "[f()]\n"),
    ("mistral", "[TOOL_CALLS]["),
    ("mistral", "[TOOL_CALLS][1,"),
    ("deepseek", f"{OPEN}function{SEP}f\n```json\n"),
    ("deepseek", f"{OPEN}f{SEP}{{"),
    ("harmony", TO),
    ("harmony", f"{TO}<|message|>{{"),
    ("harmony", "<|channel|><|constrain|>a"),
    ("react", "Action: f\nAction Input: {\n"),
    ("code", "```python\n1\n```\n"),
    ("search", "<search>a</search>"),
    ("gui", "Action: click(\n"),
]
TIMES = 16_000
EIGHTH = TIMES // 8
NOTHING = 1.0
"""Seconds below which growth is not looked at: a busy machine makes more of them than there are."""
TRIES = 5
"""Measurements that must all show growth with the square: a neighbour on the same core can double one of them."""


def _parser(name: str) -> CallParser:
    return OTHERS[name] if name in OTHERS else get_parser(name)


def _seconds(work: Callable[[], object]) -> float:
    """Of this thread's own time, which no other process can use up, without what other tests left to collect."""
    gc.disable()
    started = time.thread_time()
    try:
        work()
        return time.thread_time() - started
    finally:
        gc.enable()


def _grows_with_the_length(few: Callable[[], object], many: Callable[[], object]) -> bool:
    """Of eight times the work: eight times as long where it grows with the length, 64 times with its square."""
    return any(_seconds(many) < max(NOTHING, 32 * _seconds(few)) for _ in range(TRIES))


@pytest.mark.parametrize(("name", "unit"), UNITS)
def test_the_time_for_many_openings_grows_with_the_length(name: str, unit: str) -> None:
    parser = _parser(name)
    assert _grows_with_the_length(lambda: parser.parse(unit * EIGHTH), lambda: parser.parse(unit * TIMES))


@pytest.mark.parametrize("text", ["```" + "a" * 300_000 + "`", "`" * 300_000 + "x`", "```a " + " " * 300_000 + "`"])
def test_a_line_that_is_almost_a_fence_is_read_once(text: str) -> None:
    assert CodeBlockParser().parse(text).calls == ()  # with the square it would take hours


@pytest.mark.parametrize(
    ("name", "unit", "piece"),
    [("hermes", "<tool_call>[1,", 7), ("glm", "<tool_call>f<arg_key>x</arg_key>", 40), ("qwen3-coder", "</x>", 4)],
)
def test_a_stream_costs_no_square_either(name: str, unit: str, piece: int) -> None:
    def read(times: int) -> None:
        stream, text = StreamParser(get_parser(name)), unit * times
        pieces = [stream.push(text[start : start + piece]) for start in range(0, len(text), piece)]
        rest, reply = stream.finish()
        assert "".join([*pieces, rest]) == reply.content == get_parser(name).parse(text).content

    assert _grows_with_the_length(lambda: read(250), lambda: read(2_000))


CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "qwen3-coder": "<tool_call><function=f></function></tool_call>",
    "glm": "<tool_call>f</tool_call>",
    "llama-json": '{"name": "f", "parameters": {}};',
    "mistral": "[TOOL_CALLS]f[ARGS]{}",
    "deepseek": f"{OPEN}f{SEP}{{}}<｜tool▁call▁end｜>",
    "harmony": f"{TO}<|message|>{{}}<|call|>",
}


@pytest.mark.parametrize("name", [*CALLS, "pythonic"])
def test_calls_beyond_the_limit_are_one_refused_call(name: str) -> None:
    more = MAX_CALLS + 10
    text = f"[{', '.join(['f()'] * more)}]" if name == "pythonic" else CALLS[name] * more
    reply = get_parser(name).parse(text)
    assert len(reply.calls) == MAX_CALLS + 1
    assert not any(isinstance(call, MalformedCall) for call in reply.calls[:-1])
    last = reply.calls[-1]
    assert isinstance(last, MalformedCall)
    assert f"may hold {MAX_CALLS} tool calls" in last.message
    assert len({call.id for call in reply.calls}) == len(reply.calls)


@pytest.mark.parametrize("name", ["qwen3-coder", "glm"])
def test_a_call_with_far_too_many_parameters_is_refused(name: str) -> None:
    keys = range(MAX_PARAMETERS + 1)
    if name == "glm":
        text = (
            "<tool_call>f" + "".join(f"<arg_key>{k}</arg_key><arg_value>1</arg_value>" for k in keys) + "</tool_call>"
        )
    else:
        text = "<function=f>" + "".join(f"<parameter={k}>1</parameter>" for k in keys) + "</function>"
    (call,) = get_parser(name).parse(text).calls
    assert isinstance(call, MalformedCall)
    assert f"more than {MAX_PARAMETERS}" in call.message


@pytest.mark.parametrize("length", [1000, 1024, 1025, 4096, 50_000])
def test_arguments_of_any_length_are_read_whole(length: int) -> None:
    value = "x" * length + "\\u00e9\\\\ 12.5e3 "
    text = f'<tool_call>{{"name": "f", "arguments": {{"x": "{value}", "n": 12}}}}</tool_call> after'
    reply = get_parser("hermes").parse(text)
    (call,) = reply.calls
    assert not isinstance(call, MalformedCall)
    assert call.arguments == {"x": "x" * length + "é\\ 12.5e3 ", "n": 12}
    assert reply.content == "after"
