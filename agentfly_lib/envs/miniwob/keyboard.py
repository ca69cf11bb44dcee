"""Keys by their names, as the DevTools protocol wants them pressed.

Only these keys and combinations are pressed: none of them leads a browser away from its page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentfly_lib.envs.miniwob.actions import NoAction

__all__ = ["press", "type_characters"]

_NAMED: dict[str, tuple[str, int, str]] = {
    # name: key, virtual key code, what it types
    "enter": ("Enter", 13, "\r"),
    "tab": ("Tab", 9, ""),
    "space": (" ", 32, " "),
    "backspace": ("Backspace", 8, ""),
    "delete": ("Delete", 46, ""),
    "escape": ("Escape", 27, ""),
    "home": ("Home", 36, ""),
    "end": ("End", 35, ""),
    "pageup": ("PageUp", 33, ""),
    "pagedown": ("PageDown", 34, ""),
    "left": ("ArrowLeft", 37, ""),
    "up": ("ArrowUp", 38, ""),
    "right": ("ArrowRight", 39, ""),
    "down": ("ArrowDown", 40, ""),
}
_OTHER_NAMES = {"return": "enter", "esc": "escape", "del": "delete", "page_up": "pageup", "page_down": "pagedown"}
_OTHER_NAMES |= {f"arrow{name}": name for name in ("left", "up", "right", "down")}
_MODIFIERS = {"ctrl": 2, "control": 2, "shift": 8}
_WITH_CONTROL = frozenset("acvxyz") | {"home", "end", "left", "right", "up", "down", "backspace", "delete"}


def press(keys: str) -> Iterator[dict[str, Any]]:
    """Events for a combination such as `ctrl+a`. Raises `NoAction` if it is none, or may not be pressed."""
    *held, name = [part.strip().lower() for part in keys.split("+")] if keys != "+" else ["+"]
    name = _OTHER_NAMES.get(name, name)
    if any(modifier not in _MODIFIERS for modifier in held) or (name not in _NAMED and len(name) != 1):
        known = ", ".join([*_MODIFIERS, *_NAMED])
        raise NoAction(f"key was not done: {keys!r} is no combination of {known} and single characters.")
    modifiers = 0
    for modifier in held:
        modifiers |= _MODIFIERS[modifier]
    if modifiers & 2 and name not in _WITH_CONTROL:
        raise NoAction(
            f"key was not done: {keys!r} is not for the page; with ctrl there are a, c, v, x, y, z and moves."
        )
    yield from _stroke(name, modifiers)


def type_characters(text: str) -> Iterator[dict[str, Any]]:
    """Events for a text; every line break is Enter."""
    for character in text.replace("\r\n", "\n").replace("\r", "\n"):
        yield from _stroke({"\n": "enter", "\t": "tab"}.get(character, character), 0)


def _stroke(name: str, modifiers: int) -> Iterator[dict[str, Any]]:
    if name in _NAMED:
        key, code, text = _NAMED[name]
        event: dict[str, Any] = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
    else:
        text = name.upper() if modifiers & 8 else name
        event = {"key": text}
        if name.isascii() and name.isalnum():
            prefix = "Digit" if name.isdigit() else "Key"
            event |= {"code": prefix + name.upper(), "windowsVirtualKeyCode": ord(name.upper())}
    event["modifiers"] = modifiers
    types = bool(text) and not modifiers & 2
    yield event | ({"type": "keyDown", "text": text} if types else {"type": "rawKeyDown"})
    yield event | {"type": "keyUp"}
