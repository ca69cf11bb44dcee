"""Each fault of a call has its own message, which names the culprit; the reply around it is kept."""

from __future__ import annotations

from typing import ClassVar

import pytest

from agentfly_lib.chat import MalformedCall, ToolCall, get_parser

SEP, OPEN, CLOSE = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
TO = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("parser", "text", "culprit"),
    [
        ("qwen3-coder", "<tool_call>\nf(x=1)\n</tool_call>", "names no function"),
        ("qwen3-coder", "<tool_call><function=></function></tool_call>", "names no function"),
        ("qwen3-coder", "<function=f><parameter=x>1</function>", "parameter x of f is not closed"),
        ("qwen3-coder", "<function=f><parameter=x>1</parameter>", "parameter x of f is not closed"),
        ("qwen3-coder", "<function=f>x=1</function>", 'goes on with "x=1</function>", expected <parameter=X>'),
        ("qwen3-coder", "<function=f>", "</function> is missing"),
        ("qwen3-coder", "<tool_call><function=f></function>", "</tool_call> is missing"),
        (
            "qwen3-coder",
            "<function=f><parameter=x>1</parameter><parameter=x>2</parameter></function>",
            'the parameter "x" twice',
        ),
        ("glm", "<tool_call></tool_call>", "names no tool"),
        ("glm", "<tool_call>f<arg_key>x</arg_key><arg_value>1</tool_call>", 'argument "x" of f is not closed'),
        ("glm", "<tool_call>f\n<arg_key>x</arg_key>\n</tool_call>", 'goes on with "<arg_key>x'),
        ("glm", '<tool_call>{"name": "f"}</tool_call>', "goes on with"),
        ("glm", "<tool_call>f", "</tool_call> is missing"),
        (
            "glm",
            "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value><arg_key>x</arg_key><arg_value>2</arg_value>"
            "</tool_call>",
            'the argument "x" twice',
        ),
        ("llama-json", '{"name": "f", "parameters": {"x": }}', "not valid JSON"),
        ("llama-json", '{"name": "f"}', 'f has no "parameters"'),
        ("llama-json", '{"parameters": {}}', 'has no "name"'),
        ("llama-json", '{"name": "f", "parameters": [1]}', "must be a JSON object, got a list"),
        ("llama-json", '{"name": "f", "parameters": {}, "arguments": {}}', 'both "parameters" and "arguments"'),
        ("llama-json", '{"name": "f", "parameters": {}, "x": 1}', 'unknown key "x"'),
        ("llama-json", "<|python_tag|>print(1)", "not valid JSON"),
        ("pythonic", "[f(1)]", "f has an argument without a name"),
        ("pythonic", "[f(x=g())]", 'x of f must be a literal value, got "g()"'),
        ("pythonic", "[f(x=__import__('os').system('id'))]", "must be a literal value"),
        ("pythonic", "[f(x=1+1)]", 'must be a literal value, got "1+1"'),
        ("pythonic", "[f(x=1) + 2]", '"f(x=1) + 2" is not a call'),
        ("pythonic", "[f(**{})]", "f has ** in it"),
        ("pythonic", "[f(x=1, x=2)]", 'the argument "x" twice'),
        ("pythonic", "[f(x=)]", "not valid Python"),
        ("pythonic", "[f(x='a", "is not closed"),
        ("pythonic", "[f(x={1: 2})]", "a key that is not a string"),
        ("pythonic", "[f(x=1e999)]", "must be a literal value"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "1e999, which is too large"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": -1e999}}</tool_call>', "-1e999, which is too large"),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"x": [NaN]}}</tool_call>',
            "NaN, which is not a JSON number",
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1, "x": 2}}</tool_call>', 'the key "x" twice'),
        ("llama-json", '{"name": "f", "parameters": {"x": 1e999}}', "1e999, which is too large"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": -Infinity}}]', "-Infinity, which is not a JSON"),
        ("deepseek", f'{OPEN}f{SEP}{{"x": 1e999}}{CLOSE}', "1e999, which is too large"),
        ("harmony", TO + '{"x": 1e999}<|call|>', "1e999, which is too large"),
        ("pythonic", "[f(x='\\ud800')]", "cannot be written down"),
        ("pythonic", "[f(x=" + "[" * 500 + "]" * 500 + ")]", "nested too deeply"),
        ("pythonic", "[f(x=" + "-" * 5000 + "1)]", ""),
        ("pythonic", "[f(x=" + "1+" * 5000 + "1)]", ""),
        ("pythonic", "[f(x=0x" + "f" * 6000 + ")]", "cannot be written down"),
        ("pythonic", "[f(x=" + "9" * 6000 + ")]", "not valid Python"),
        ("pythonic", "[f()()]", "is not the name of a tool"),
        ("mistral", "[TOOL_CALLS][]", "The list of calls is empty"),
        ("mistral", '[TOOL_CALLS][{"name": "f"}]', 'f has no "arguments"'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}', "not valid JSON"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}} {"name": "g"}]', "not valid JSON"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{bad}", "not valid JSON"),
        ("mistral", "[TOOL_CALLS]f", "cannot be read"),
        ("mistral", '[TOOL_CALLS]{"x": 1}', "names no tool"),
        ("deepseek", f"{OPEN}function{SEP}f\n```json\n{{bad}}\n```{CLOSE}", "not valid JSON"),
        ("deepseek", f"{OPEN}function{SEP}f\n```json\n{{}}\n```", f"{CLOSE} is missing"),
        ("deepseek", f"{OPEN}f{SEP}[1]{CLOSE}", "f must be a JSON object, got a list"),
        ("deepseek", f"{OPEN}{SEP}{{}}{CLOSE}", "names no tool"),
        ("deepseek", f"{OPEN}f{CLOSE}", "cannot be read"),
        ("harmony", TO + "{bad}", "not valid JSON"),
        ("harmony", TO + "[]", "f must be a JSON object, got a list"),
        ("harmony", TO + '{"x": 1, "x": 2}', 'the key "x" twice'),
        ("harmony", TO + "{} and more", "not valid JSON"),
        ("harmony", TO.replace("functions.f", "functions.") + "{}", "names no tool"),
        ("harmony", "<|channel|>commentary to=functions.f", "has no <|message|>"),
    ],
)
def test_the_message_names_the_culprit(parser, text, culprit):
    (call,) = get_parser(parser).parse(text).calls
    assert isinstance(call, MalformedCall)
    assert culprit in call.message
    assert len(call.message) < 400


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("llama-json", '{"answer": 4}'),
        ("llama-json", 'The schema is {"name": "f"}.'),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "See [f(x=1)] above."),
        ("pythonic", "[link](http://x)"),
        ("harmony", "just text"),
        ("mistral", "TOOL_CALLS"),
    ],
)
def test_text_that_only_looks_like_a_call_is_text(parser, text):
    reply = get_parser(parser).parse(text)
    assert (reply.content, reply.calls) == (text, ())


@pytest.mark.parametrize(
    ("parser", "good", "bad"),
    [
        ("qwen3-coder", "<tool_call><function=f></function></tool_call>", "<tool_call>bad</tool_call>"),
        ("glm", "<tool_call>f</tool_call>", "<tool_call>f g</tool_call>"),
        ("deepseek", f"{OPEN}f{SEP}{{}}{CLOSE}", f"{OPEN}f{SEP}{{bad{CLOSE}"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}", "[TOOL_CALLS]f[ARGS]{bad"),
        ("harmony", TO + "{}<|call|><|start|>assistant", TO + "{bad<|call|><|start|>assistant"),
    ],
)
def test_a_bad_call_does_not_take_a_good_one_with_it(parser, good, bad):
    found = get_parser(parser).parse(f"{good}{bad}{good}").calls
    assert [type(call) for call in found] == [ToolCall, MalformedCall, ToolCall]


class TestValuesWithoutAType:
    TOOL: ClassVar = {
        "function": {
            "name": "f",
            "parameters": {
                "properties": {
                    "text": {"type": "string"},
                    "choice": {"enum": ["1", "2"]},
                    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "n": {"type": "integer"},
                }
            },
        }
    }

    def read(self, tools, **values):
        body = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items())
        (call,) = get_parser("glm", tools).parse(f"<tool_call>f{body}</tool_call>").calls
        return call.arguments

    def test_the_schema_decides(self):
        found = self.read([self.TOOL], text="42", choice="1", maybe="null", n="42")
        assert found == {"text": "42", "choice": "1", "maybe": None, "n": 42}

    def test_what_is_no_json_stays_text_for_the_tool_to_refuse(self):
        assert self.read([self.TOOL], n="many") == {"n": "many"}

    def test_without_a_schema_json_is_read_and_a_quoted_text_keeps_its_quotes(self):
        assert self.read((), a="42", b='"x"', c="[1]", d="x") == {"a": 42, "b": '"x"', "c": [1], "d": "x"}
