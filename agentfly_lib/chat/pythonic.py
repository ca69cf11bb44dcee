"""Tool calls as a Python list of calls, which Llama 3.2, Llama 4 and Gemma write:

    [calculator(expression="2 + 3"), weather(city="Bern", days=2)]

The list begins a line of the reply (or follows `<|python_tag|>` or `<|python_start|>`). It is parsed, never evaluated:
arguments are literals given by name. `true`, `false` and `null` are read as JSON has them.
"""

from __future__ import annotations

import ast
import json
import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from agentfly_lib.chat.blocks import LINE_START, MAX_CALLS, Attempt, Block, BlockParser, attempt
from agentfly_lib.chat.json_call import Refused, show

__all__ = ["PythonicParser"]

_EXPECTED = '[tool_name(argument="value")]'
_TAG = r"<\|python_(?:tag|start)\|>\s*"
_AFTER = "<|python_end|>"
_BRACKETS = regex.compile(r"""'{3}|"{3}|['"]|[()\[\]{}]""")
_STRINGS = {mark: regex.compile(rf"(?:\\.|(?!{mark}).)*+{mark}", regex.DOTALL) for mark in ("'", '"', "'" * 3, '"' * 3)}
"""From what opens a string to the rest of one."""
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"true": True, "false": False, "null": None}
_MAX_DEPTH = 60


@dataclass(frozen=True, slots=True)
class PythonicParser(BlockParser):
    """Finds lists of calls in a reply."""

    opening: ClassVar[regex.Pattern[str]] = regex.compile(
        rf"{_TAG}|(?:{LINE_START}|(?<=<\|python_end\|>)\s*)\[\s*[A-Za-z_][\w.-]*\s*\("
    )

    def block(self, text: str, start: int, end: int) -> Block:
        begin = text.find("[", start) if "[" in text[start:end] else end
        stop = _list_end(text, begin)
        if stop is None:
            raw = text[begin:]
            fault = f"The list of calls is not closed, so nothing was executed. Expected {_EXPECTED}."
            return Block(end=len(text), attempts=(Attempt(raw=raw, fault=fault),))
        after = stop + len(_AFTER) if text.startswith(_AFTER, stop) else stop
        settled = not _AFTER.startswith(text[stop:]) or after > stop
        return Block(end=after, attempts=_read(text[begin:stop]), settled=settled)


def _list_end(text: str, begin: int) -> int | None:
    """Index after the list that begins at `begin`; None if there is none, or it does not end."""
    if not text.startswith("[", begin):
        return None
    open_brackets = list[str]()
    position = begin
    while (found := _BRACKETS.search(text, position)) is not None:
        mark, position = found[0], found.end()
        if mark in _PAIRS:
            open_brackets.append(_PAIRS[mark])
        elif mark in ")]}":
            if not open_brackets or open_brackets.pop() != mark:
                return None
            if not open_brackets:
                return position
        else:
            closing = _STRINGS[mark].match(text, position)
            if closing is None:
                return None
            position = closing.end()
    return None


def _read(raw: str) -> tuple[Attempt, ...]:
    try:
        calls = _calls(raw)
    except Refused as refusal:
        return (Attempt(raw=raw, fault=str(refusal)),)
    return tuple(
        attempt(ast.get_source_segment(raw, call) or raw, lambda call=call: _call(call, raw)) for call in calls
    )


def _calls(raw: str) -> list[ast.expr]:
    _check_depth(raw)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's "\d" is no matter for our users
            tree = ast.parse(raw, mode="eval").body
    except SyntaxError as error:
        raise Refused(f"The tool call is not valid Python: {error.msg}. Expected {_EXPECTED}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"The tool call cannot be read. Expected {_EXPECTED}.") from error
    if not isinstance(tree, ast.List) or not tree.elts:
        raise Refused(f"The tool call is not a list of calls. Expected {_EXPECTED}.")
    return tree.elts[: MAX_CALLS + 1]  # one more than is read, so that the model is told


def _call(node: ast.expr, raw: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call):
        raise Refused(f"{_source(node, raw)} is not a call. Expected {_EXPECTED}.")
    if not isinstance(node.func, ast.Name | ast.Attribute):
        raise Refused(f"{_source(node.func, raw)} is not the name of a tool. Expected {_EXPECTED}.")
    name = ast.get_source_segment(raw, node.func) or ""
    if node.args:
        raise Refused(f"The call of {name} has an argument without a name. Expected {_EXPECTED}.")
    arguments = dict[str, Any]()
    for keyword in node.keywords:
        if keyword.arg is None:
            raise Refused(f"The call of {name} has ** in it. Expected {_EXPECTED}.")
        if keyword.arg in arguments:
            raise Refused(f"The call of {name} has the argument {show(keyword.arg)} twice.")
        arguments[keyword.arg] = _literal(keyword.value, raw, f"{keyword.arg} of {name}")
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except ValueError as error:
        raise Refused(f"The call of {name} holds a number or a character that cannot be written down.") from error
    return name, arguments


def _literal(node: ast.expr, raw: str, where: str) -> Any:
    """The value of a literal that JSON could hold."""
    match node:
        case ast.Constant(value=bool() | str() | int() | None as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ) and math.isfinite(value):
            return -value
        case ast.Name(id=("true" | "false" | "null") as name):
            return _CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item, raw, where) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key, where): _literal(value, raw, where) for key, value in zip(keys, values, strict=True)}
    raise Refused(f"The argument {where} must be a literal value, got {_source(node, raw)}.")


def _source(node: ast.expr, raw: str) -> str:
    return show(ast.get_source_segment(raw, node) or "")


def _key(node: ast.expr | None, where: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise Refused(f"The argument {where} has a key that is not a string.")


def _check_depth(raw: str) -> None:
    depth = deepest = 0
    for character in raw:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise Refused("The tool call is nested too deeply to be read.")
