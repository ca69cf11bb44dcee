"""Tool calls in the Hermes style, which Qwen and many others are trained on:

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "2 + 3"}}
    </tool_call>

The JSON object is read by a JSON decoder from the opening tag on, so a closing tag inside a string argument ends
nothing. Whatever opens a call and is not a complete, valid one becomes a `MalformedCall` whose message tells the model
what was wrong; nothing is repaired, coerced or dropped. Reasoning between `<think>` and `</think>` is not searched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall

__all__ = ["HermesParser"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_EXPECTED = '{"name": "<tool>", "arguments": {...}}'
_SURROGATE = re.compile("[\ud800-\udfff]")
_REASONING_END = "</think>"
_REASONING_START = "<think>"


class _Refused(ValueError):
    """The message for the model."""


@dataclass(frozen=True, slots=True)
class HermesParser:
    """Finds `<tool_call>` blocks in a reply. Stateless."""

    def parse(self, text: str, *, truncated: bool) -> ParsedReply:
        """Takes a reply apart.

        `truncated` says that the length limit cut the reply: none of its calls may be executed then, since the cut may
        have changed what the model meant to do. A call whose closing tag is missing is never executed either.
        """
        reasoning, answer = _split_reasoning(text)
        outside: list[str] = [reasoning]
        calls: list[ToolCall | MalformedCall] = []
        position = 0
        while (start := answer.find(_OPEN, position)) >= 0:
            outside.append(answer[position:start])
            body_start = start + len(_OPEN)
            body_end, position, closed = _body(answer, body_start)
            raw = answer[body_start:body_end]
            calls.append(_read_call(f"call-{len(calls)}", raw, closed=closed, truncated=truncated))
        outside.append(answer[position:])
        return ParsedReply(content="".join(outside).strip(), calls=tuple(calls))


def _split_reasoning(text: str) -> tuple[str, str]:
    """The reasoning at the start (its opening tag may stand in the prompt) and what follows it.

    Reasoning that never ends hides nothing, and neither does a closing tag inside a call.
    """
    end, call = text.find(_REASONING_END), text.find(_OPEN)
    opened = text.lstrip().startswith(_REASONING_START)
    if end < 0 or (not opened and 0 <= call < end):
        return "", text
    split = end + len(_REASONING_END)
    return text[:split], text[split:]


def _body(text: str, start: int) -> tuple[int, int, bool]:
    """Where the body that begins at `start` ends, where to go on searching, and whether the call was closed."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        _, end = _decoder.raw_decode(text, begin)
    except (ValueError, RecursionError):
        end = begin
    else:
        rest = text[end:].lstrip()
        if rest.startswith(_CLOSE):
            return end, len(text) - len(rest) + len(_CLOSE), True
    close, reopened = text.find(_CLOSE, end), text.find(_OPEN, end)
    if close >= 0 and not 0 <= reopened < close:
        return close, close + len(_CLOSE), True
    stop = reopened if reopened >= 0 else len(text)
    return stop, stop, False


def _read_call(call_id: str, raw: str, *, closed: bool, truncated: bool) -> ToolCall | MalformedCall:
    try:
        if truncated:
            raise _Refused("The reply was cut by the length limit, so this tool call was not executed.")
        if not closed:
            raise _Refused(f"The tool call is not closed: {_CLOSE} is missing, so it was not executed.")
        name, arguments = _read_object(raw.strip())
    except _Refused as refusal:
        return MalformedCall(id=call_id, raw=raw, message=str(refusal))
    return ToolCall(id=call_id, name=name, arguments=arguments)


def _read_object(raw: str) -> tuple[str, dict[str, Any]]:
    value = _load(raw)
    if not isinstance(value, dict):
        raise _Refused(f"The tool call is a JSON {_kind(value)}, expected an object: {_EXPECTED}.")
    if "name" not in value:
        raise _Refused(f'The tool call has no "name" ({_keys(value)}), expected {_EXPECTED}.')
    name = value["name"]
    if not isinstance(name, str) or not name:
        raise _Refused(f'"name" of the tool call must be the name of a tool, got {_show(name)}.')
    if "arguments" not in value:
        raise _Refused(
            f'The call of {name} has no "arguments" ({_keys(value)}), expected {_EXPECTED}; '
            'write "arguments": {} for a tool that takes none.'
        )
    arguments = value["arguments"]
    if not isinstance(arguments, dict):
        raise _Refused(f'"arguments" of the call of {name} must be a JSON object, got a {_kind(arguments)}.')
    extra = sorted(value.keys() - {"name", "arguments"})
    if extra:
        raise _Refused(f"The call of {name} has the unknown key {_show(extra[0])}, expected only name and arguments.")
    return name, arguments


def _load(raw: str) -> Any:
    try:
        value = json.loads(raw, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        near = raw[max(0, error.pos - 15) : error.pos + 15]
        raise _Refused(
            f"The tool call is not valid JSON: {error.msg} at character {error.pos}"
            + (f", near {_show(near)}" if near else "")
            + f". Expected {_EXPECTED}."
        ) from error
    except RecursionError as error:
        raise _Refused("The tool call is nested too deeply to be read.") from error
    except _Refused:
        raise
    except ValueError as error:
        raise _Refused("The tool call holds a number that is too long to be read.") from error
    # Half of a surrogate pair is legal in JSON's \u notation and is no character: nothing could encode it again.
    if "\\u" in raw and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise _Refused("The tool call holds a \\u escape that is half of a pair and stands for no character.")
    return value


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _Refused(f"The tool call has the key {_show(key)} twice.")
        result[key] = value
    return result


def _no_constant(text: str) -> Any:
    raise _Refused(f"The tool call holds {text}, which is not a JSON number.")


def _kind(value: Any) -> str:
    kinds: tuple[tuple[type, str], ...] = ((bool, "boolean"), (str, "string"), (list, "list"), (dict, "object"))
    for kind, name in kinds:
        if isinstance(value, kind):
            return name
    return "null" if value is None else "number"


def _keys(value: dict[str, Any]) -> str:
    return f"its keys: {', '.join(map(_show, value))}" if value else "it is empty"


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


_decoder = json.JSONDecoder(strict=True)
