"""One action on a screen per turn, written as a call:

    Thought: The button is at the top.
    Action: click(x=640, y=32)

Values are whole or decimal numbers, quoted strings, and the words true and false; nothing is evaluated. Coordinates
(`x`, `y`, `to_x`, `to_y`) must lie on the screen. Only the first action of a reply is taken, because what comes after
was written without having seen what the first one did; the policy is told.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import regex

from agentfly_lib.chat.blocks import after_reasoning
from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall
from agentfly_lib.chat.json_call import Refused, show

__all__ = ["GuiActionParser", "Screen"]

_ACTION = regex.compile(r"(?mi)^[ \t]*action[ \t]*:[ \t]*")
_NAME = regex.compile(r"([A-Za-z_]\w{0,63})[ \t]*\(")
_KEY = regex.compile(r"([A-Za-z_]\w{0,63})\s*=\s*")
_VALUE = regex.compile(
    r"""(?P<number>[+-]?\d{1,15}(?:\.\d{1,15})?(?![\w.]))
      | (?P<word>true|false)\b
      | "(?P<double>(?:[^"\\]|\\.)*+)"
      | '(?P<single>(?:[^'\\]|\\.)*+)'""",
    regex.VERBOSE | regex.IGNORECASE | regex.DOTALL,
)
_SPACE = regex.compile(r"\s*+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_FORMAT = "write one line such as: Action: click(x=100, y=200)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Size in pixels; the top left corner is (0, 0)."""

    width: int = 1280
    height: int = 720

    def fault(self, name: str, value: object) -> str | None:
        """Why a coordinate of that name cannot be; None if it can, or if it is none."""
        size, side = (self.width, "wide") if name in ("x", "to_x") else (self.height, "high")
        if name not in ("x", "y", "to_x", "to_y"):
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            return f"{name} must be a whole number of pixels, got {show(value)}"
        if not 0 <= value < size:
            return f"{name}={value} is not on the screen, which is {size} pixels {side} (0 to {size - 1})"
        return None


@dataclass(frozen=True, slots=True)
class GuiActionParser:
    """Finds the action of a reply."""

    screen: Screen

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart; its first action is taken, any other is refused."""
        openings = list(_ACTION.finditer(text, after_reasoning(text, _ACTION)))
        content = text[: openings[0].start()].strip() if openings else text.strip()
        if not openings:
            fault = f"The reply has no action; {_FORMAT}"
            return ParsedReply(content=content, calls=(MalformedCall(id="call-0", raw=content, message=fault),))
        ends = [*(opening.start() for opening in openings[1:]), len(text)]
        calls: list[ToolCall | MalformedCall] = []
        for opening, end in zip(openings, ends, strict=True):
            call_id, raw = f"call-{len(calls)}", text[opening.end() : end].strip()
            try:
                if calls:
                    raise Refused(
                        "Only one action is taken in a turn, so this one was not: see what the first one did."
                    )
                name, arguments = _read(raw)
                self._check(name, arguments)
            except Refused as refusal:
                calls.append(MalformedCall(id=call_id, raw=raw, message=str(refusal)))
            else:
                calls.append(ToolCall(id=call_id, name=name, arguments=arguments))
        return ParsedReply(content=content, calls=tuple(calls))

    def _check(self, name: str, arguments: dict[str, object]) -> None:
        for key, value in arguments.items():
            if fault := self.screen.fault(key, value):
                raise Refused(f"{name} was not done: {fault}.")


def _read(raw: str) -> tuple[str, dict[str, object]]:
    """Name and arguments of `name(key=value, ...)`. Raises `Refused`."""
    named = _NAME.match(raw)
    if named is None:
        raise Refused(f"The action {_near(raw, 0)} is no call; {_FORMAT}")
    name, position, arguments = named[1], _skip(raw, named.end()), dict[str, object]()
    while not raw.startswith(")", position):
        if arguments:
            if not raw.startswith(",", position):
                raise Refused(f"The action {name} needs , or ) at {_near(raw, position)}.")
            position = _skip(raw, position + 1)
        key = _KEY.match(raw, position)
        if key is None:
            raise Refused(f"The action {name} needs arguments by name, as in x=1, at {_near(raw, position)}.")
        value = _VALUE.match(raw, key.end())
        if value is None:
            raise Refused(f"{key[1]} of the action {name} needs a number or a quoted text at {_near(raw, key.end())}.")
        if key[1] in arguments:
            raise Refused(f"The action {name} has {key[1]} twice.")
        arguments[key[1]] = _value(value)
        position = _skip(raw, value.end())
    if rest := raw[position + 1 :].strip():
        raise Refused(f"Nothing may follow the action {name}, got {_near(rest, 0)}.")
    return name, arguments


def _value(found: regex.Match[str]) -> object:
    if (number := found["number"]) is not None:
        return float(number) if "." in number else int(number)
    if (word := found["word"]) is not None:
        return word.lower() == "true"
    text = found["double"] if found["double"] is not None else found["single"]
    return regex.sub(r"(?s)\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), text)


def _skip(raw: str, position: int) -> int:
    space = _SPACE.match(raw, position)
    return position if space is None else space.end()


def _near(raw: str, position: int) -> str:
    piece = raw[position : position + 30]
    return json.dumps(piece, ensure_ascii=False) if piece else "the end"
