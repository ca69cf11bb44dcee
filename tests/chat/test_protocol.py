"""A call that a server gives comes out of the agent's parser unchanged, in every family's format."""

from __future__ import annotations

import json

import pytest

from agentfly_lib.chat.families import FAMILIES
from agentfly_lib.chat.parsers import get_parser
from agentfly_lib.chat.protocol import protocol_messages, reply_text

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weight",
            "description": "How heavy an animal is.",
            "parameters": {
                "type": "object",
                "properties": {"animal": {"type": "string"}, "number": {"type": "integer"}},
                "required": ["animal"],
            },
        },
    }
]
QUESTION = [{"role": "user", "content": "How heavy is a cat?"}]
ARGUMENTS = {"animal": 'a "cat"', "number": 2}


SHIPPED = [name for name in FAMILIES if name != "qwen3-coder"]
"""Families with a template of ours."""


def reply(content: str | None, *arguments: dict) -> dict:
    calls = [
        {"id": "x", "type": "function", "function": {"name": "weight", "arguments": json.dumps(a)}} for a in arguments
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


@pytest.mark.parametrize("name", SHIPPED)
def test_there_and_back(name, shipped_format):
    chat = shipped_format(name)
    text = reply_text(reply(None, ARGUMENTS), QUESTION, TOOLS, chat)
    parser = get_parser(chat.parser, TOOLS)
    (call,) = parser.parse(text).calls
    assert (call.name, dict(call.arguments)) == ("weight", ARGUMENTS)
    conversation = [
        *QUESTION,
        {"role": "assistant", "content": text},
        {"role": "tool", "tool_call_id": call.id, "name": "weight", "content": "8 kg"},
    ]
    question, said, result = protocol_messages(conversation, TOOLS, chat)
    (sent,) = said["tool_calls"]
    assert question == QUESTION[0]
    assert (sent["function"]["name"], json.loads(sent["function"]["arguments"])) == ("weight", ARGUMENTS)
    assert result == {"role": "tool", "tool_call_id": sent["id"], "content": "8 kg"}
    assert set(said) == {"role", "content", "tool_calls"}


@pytest.mark.parametrize("name", SHIPPED)
def test_words_stay_words(name, shipped_format):
    assert reply_text(reply("4 kg"), QUESTION, TOOLS, shipped_format(name)) == "4 kg"
