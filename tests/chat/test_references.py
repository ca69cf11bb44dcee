"""Our templates and parsers against the renderers that two vendors publish for their formats."""

from __future__ import annotations

import json

import pytest

from agentfly_lib.chat import get_parser
from agentfly_lib.chat.templates import shipped_template

pytestmark = pytest.mark.stack

PARAMETERS = {
    "type": "object",
    "properties": {
        "expression": {"type": "string", "description": "What to work out."},
        "digits": {"type": "integer", "default": 2},
        "unit": {"type": "string", "enum": ["m", "km"]},
        "names": {"type": "array", "items": {"type": "string"}},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["expression"],
}
TOOL = {
    "type": "function",
    "function": {"name": "calculator", "description": "Evaluates.", "parameters": PARAMETERS},
}
ARGUMENTS = {"expression": "2+3"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "calculator", "arguments": ARGUMENTS}}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "calculator", "content": "five"},
]


def ours(family: str, tokenizer, conversation: list[dict]) -> str:
    return str(
        tokenizer.apply_chat_template(
            conversation,
            tools=[TOOL],
            chat_template=shipped_template(family),
            tokenize=False,
            add_generation_prompt=True,
        )
    )


def test_mistral(family_tokenizer):
    """Of its version 7; the vocabulary that is at hand puts a space behind each control token, newer ones do not."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    theirs = [{**message} for message in CONVERSATION]
    theirs[2] = {
        "role": "assistant",
        "tool_calls": [{**CALL, "function": {"name": "calculator", "arguments": json.dumps(ARGUMENTS)}}],
    }
    request = ChatCompletionRequest.model_validate({"messages": theirs, "tools": [TOOL]})
    text = MistralTokenizer.v7().encode_chat_completion(request).text
    assert text is not None
    expected = text.replace("▁", " ").replace("] ", "]")
    assert ours("mistral", family_tokenizer("mistral"), CONVERSATION).replace("] ", "]") == expected


class TestHarmony:
    THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    CALL = '<|channel|>commentary to=functions.calculator <|constrain|>json<|message|>{"expression": "2+3"}'

    @pytest.fixture(scope="class")
    def encoding(self):
        from openai_harmony import HarmonyEncodingName, load_harmony_encoding

        return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

    def conversation(self):
        from openai_harmony import (
            Author,
            Conversation,
            DeveloperContent,
            Message,
            ReasoningEffort,
            Role,
            SystemContent,
            ToolDescription,
        )

        tool = ToolDescription.new("calculator", "Evaluates.", parameters=PARAMETERS)
        say = Message.from_role_and_content
        system = SystemContent.new().with_reasoning_effort(ReasoningEffort.MEDIUM)
        developer = DeveloperContent.new().with_instructions("Be brief.").with_function_tools([tool])
        return Conversation.from_messages(
            [
                say(Role.SYSTEM, system),
                say(Role.DEVELOPER, developer),
                say(Role.USER, "2+3?"),
                say(Role.ASSISTANT, "Hm.").with_channel("analysis"),
                say(Role.ASSISTANT, json.dumps(ARGUMENTS))
                .with_channel("commentary")
                .with_recipient("functions.calculator")
                .with_content_type("<|constrain|>json"),
                Message.from_author_and_content(Author.new(Role.TOOL, "functions.calculator"), "five")
                .with_channel("commentary")
                .with_recipient("assistant"),
            ]
        )

    def test_template(self, encoding, family_tokenizer):
        from openai_harmony import Role

        text = encoding.decode(encoding.render_conversation_for_completion(self.conversation(), Role.ASSISTANT))
        # The description of the format, and OpenAI's own template, write a result's recipient before its channel.
        expected = text.replace(
            "<|start|>functions.calculator<|channel|>commentary to=assistant",
            "<|start|>functions.calculator to=assistant<|channel|>commentary",
        )
        conversation = [*CONVERSATION]
        conversation[2] = {**CONVERSATION[2], "thinking": "Hm."}
        assert ours("gpt-oss", family_tokenizer("gpt-oss"), conversation) == expected

    @pytest.mark.parametrize(
        "reply",
        [
            THOUGHT + CALL,
            CALL,
            ' to=functions.calculator<|channel|>commentary json<|message|>{"expression": "2+3"}',
            THOUGHT + "<|channel|>final<|message|>It is 5.",
            THOUGHT + "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant" + CALL,
            "<|channel|>final<|message|>5",
        ],
    )
    def test_parser(self, encoding, reply):
        from openai_harmony import Role

        ids = encoding.encode(reply, allowed_special="all")
        content, thoughts, calls = [], [], []
        for message in encoding.parse_messages_from_completion_tokens(ids, Role.ASSISTANT):
            text = message.content[0].text
            if message.recipient and message.recipient.startswith("functions."):
                calls.append((message.recipient.removeprefix("functions."), json.loads(text)))
            else:
                (thoughts if message.channel == "analysis" else content).append(text)
        parsed = get_parser("harmony").parse(reply)
        assert parsed.content == "".join(content)
        assert parsed.reasoning == "".join(thoughts)
        assert [(call.name, call.arguments) for call in parsed.calls] == calls
