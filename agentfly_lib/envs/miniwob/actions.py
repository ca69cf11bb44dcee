"""What can be done on a screen: the GUI agent's actions, as functions that write them and a reader that checks them.

    click(x=80, y=40)

They are written and read as GUI agents write them (`chat.gui_action`), so coordinates off the screen are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from agentfly_lib.chat.calls import MalformedCall
from agentfly_lib.chat.gui_action import GuiActionParser, Screen
from agentfly_lib.configs.base import Config

__all__ = [
    "ACTIONS",
    "Click",
    "Drag",
    "Finished",
    "Key",
    "NoAction",
    "ScreenAction",
    "Scroll",
    "Type",
    "Wait",
    "read_action",
]

Button = Literal["left", "right", "middle"]
Direction = Literal["up", "down", "left", "right"]
_LONGEST_TEXT = 2000


class NoAction(Exception):
    """Why an action cannot be done, for the model."""


class Click(Config):
    """See `click`."""

    x: int
    y: int
    button: Button = "left"
    times: Annotated[int, Field(ge=1, le=3)] = 1


class Type(Config):
    """See `type_text`."""

    text: Annotated[str, Field(max_length=_LONGEST_TEXT)]


class Scroll(Config):
    """See `scroll`."""

    x: int
    y: int
    direction: Direction
    amount: Annotated[int, Field(ge=1, le=20)] = 3


class Drag(Config):
    """See `drag`."""

    x: int
    y: int
    to_x: int
    to_y: int


class Key(Config):
    """See `key`."""

    keys: Annotated[str, Field(min_length=1, max_length=64)]


class Wait(Config):
    """See `wait`."""

    seconds: Annotated[float, Field(ge=0, le=5)] = 1.0


class Finished(Config):
    """See `finished`."""

    answer: str = ""


ScreenAction = Click | Type | Scroll | Drag | Key | Wait | Finished

_KINDS: dict[str, type[ScreenAction]] = {
    "click": Click,
    "type": Type,
    "scroll": Scroll,
    "drag": Drag,
    "key": Key,
    "wait": Wait,
    "finished": Finished,
}


def read_action(text: str, screen: Screen) -> ScreenAction:
    """Reads `name(key=value, ...)`. Raises `NoAction`."""
    text = text.encode("utf-8", "replace").decode()  # half surrogates can reach no browser
    call = GuiActionParser(screen).parse(f"Action: {text}").calls[0]
    if isinstance(call, MalformedCall):
        raise NoAction(call.message)
    kind = _KINDS.get(call.name)
    if kind is None:
        raise NoAction(f"There is no action {call.name}; the actions are {', '.join(_KINDS)}.")
    try:
        return kind.model_validate(dict(call.arguments))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False)]
        raise NoAction(f"{call.name} was not done: {'; '.join(faults[:3])[:300]}.") from error


def click(x: int, y: int, button: Button = "left", times: int = 1) -> str:
    """Click at a point.

    Args:
        x: Pixels from the left.
        y: Pixels from the top.
        times: 2 for a double click.
    """
    return _write("click", x=x, y=y, button=button, times=times)


def type_text(text: str) -> str:
    """Type text where the cursor is.

    Args:
        text: What to type; a line break in it presses Enter.
    """
    return _write("type", text=text)


def scroll(x: int, y: int, direction: Direction, amount: int = 3) -> str:
    """Scroll at a point.

    Args:
        amount: Notches of the wheel.
    """
    return _write("scroll", x=x, y=y, direction=direction, amount=amount)


def drag(x: int, y: int, to_x: int, to_y: int) -> str:
    """Press at one point, move to another, and let go."""
    return _write("drag", x=x, y=y, to_x=to_x, to_y=to_y)


def key(keys: str) -> str:
    """Press keys at the same time.

    Args:
        keys: Names joined by +, as in ctrl+c or enter.
    """
    return _write("key", keys=keys)


def wait(seconds: float = 1.0) -> str:
    """Wait for the screen to change."""
    return _write("wait", seconds=seconds)


def finished(answer: str = "") -> str:
    """The task is done.

    Args:
        answer: What was asked for, if the task asks for something.
    """
    return _write("finished", answer=answer)


type_text.__name__ = "type"

ACTIONS = (click, type_text, scroll, drag, key, wait, finished)
"""As `agents.gui_tools` has them."""


def _write(name: str, /, **arguments: Any) -> str:
    return f"{name}({', '.join(f'{key}={_value(value)}' for key, value in arguments.items())})"


def _value(value: Any) -> str:
    if not isinstance(value, str):
        return f"{value:f}" if isinstance(value, float) else str(value)
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        value = value.replace(character, escape)
    return f'"{value}"'
