"""One page of MiniWoB in a browser: begun by a seed, seen as a picture or as text, acted on as with mouse and keyboard.

Sizes: a page is 160 x 210 CSS pixels; `scale` screen pixels make one of them. Everything outside this module counts in
screen pixels.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentfly_lib.chat.gui_action import Screen
from agentfly_lib.envs.miniwob.actions import Click, Drag, Key, ScreenAction, Scroll, Type, Wait
from agentfly_lib.envs.miniwob.chromium import Chromium
from agentfly_lib.envs.miniwob.devtools import BrowserError
from agentfly_lib.envs.miniwob.keyboard import press, type_characters

__all__ = ["Page", "PageState", "pages_folder"]

WIDTH, HEIGHT = 160, 210
_NOTCH = 40
"""CSS pixels that the wheel's notch scrolls."""
_DRAG_MOVES = 8
_PLACE = "/miniwob"
_NO_TIME_LIMIT = 2**31 - 1

# Until a page has loaded the seeded generator of its own, and when it does, chance is ours.
_SEEDED = """(() => {{
  let state = {seed} >>> 0;
  Math.random = () => {{
    state = (state + 0x6D2B79F5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }};
}})()"""
_BEGIN = "Math.seedrandom({seed}); core.EPISODE_MAX_TIME = {limit}; core.startEpisodeReal(); core.getUtterance()"
_STATE = """typeof WOB_DONE_GLOBAL === "undefined"
  ? null : [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, String(WOB_REWARD_REASON ?? "")]"""
_SETTLED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
_OUTLINE = "core.getDOMInfo()"
_TYPED = frozenset({"input_text", "input_password", "input_number", "input_date", "input_time", "textarea"})
_CONTROLS = frozenset({"button", "a", "select", "option", "canvas", "rect", "circle", "polygon", "ellipse", "path"})
_LONGEST_WORDS = 200
_MOST_LINES = 200


def pages_folder() -> Path | None:
    """Where the package `miniwob` keeps its pages; None without the package, which is not imported."""
    import importlib.util

    found = importlib.util.find_spec("miniwob")
    places = list(found.submodule_search_locations or ()) if found else []
    return Path(places[0]) / "html" if places else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """What the page says of the episode."""

    done: bool
    reward: float
    """In [-1, 1]; without what the page takes off for the time that was needed."""
    reason: str
    left: bool = False
    """There is no page of MiniWoB any more."""


class Page:
    """A browser with a page. Whatever fails raises `BrowserError`, and then the browser is of no more use."""

    def __init__(self, folder: Path, *, scale: int, seconds: float) -> None:
        """`seconds`: limit of each thing that is asked of the browser."""
        self._scale = scale
        self.screen = Screen(width=WIDTH * scale, height=HEIGHT * scale)
        self._browser = Chromium({_PLACE: folder}, seconds=seconds)
        self._script: str | None = None
        try:
            self._call("Page.enable")
            self._browser.tools.call("Browser.setDownloadBehavior", behavior="deny")
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": scale, "mobile": False}
            self._call("Emulation.setDeviceMetricsOverride", **size)
            self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        except BrowserError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process on top of all of the browser's."""
        return self._browser.pid

    def close(self) -> None:
        """Ends the browser. A second call does nothing."""
        self._browser.close()

    def begin(self, name: str, seed: int) -> str:
        """Loads a page and begins its episode; returns what it asks for."""
        if self._script is not None:
            self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=self._script)
        source = _SEEDED.format(seed=seed)
        self._script = self._call("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"]
        self._browser.tools.forget()
        loading = self._call("Page.navigate", url=f"file://{_PLACE}/miniwob/{name}.html")
        if "errorText" in loading:
            raise BrowserError(f"the page {name} does not load: {loading['errorText']}")
        self._browser.tools.wait_for("Page.loadEventFired")
        instruction = self._evaluate(_BEGIN.format(seed=seed, limit=_NO_TIME_LIMIT))
        self._move(0, 0)
        self._settle()
        return str(instruction)

    def state(self) -> PageState:
        """Of the episode."""
        found = self._evaluate(_STATE)
        if found is None:
            return PageState(done=True, reward=0.0, reason="the page was left", left=True)
        done, reward, reason = found
        return PageState(done=bool(done), reward=float(reward), reason=str(reason)[:_LONGEST_WORDS])

    def picture(self) -> bytes:
        """The screen, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def outline(self) -> str:
        """What can be seen, one thing a line: kind, words, and the middle of it on the screen."""
        lines: list[str] = []
        for line in self._lines(self._evaluate(_OUTLINE) or {}):
            if len(lines) == _MOST_LINES:
                lines.append("[more is not shown]")
                break
            lines.append(line)
        return "\n".join(lines)

    def perform(self, action: ScreenAction) -> None:
        """Does it, and waits until the page has been drawn again. Raises `NoAction` for keys that are not pressed."""
        match action:
            case Click():
                self._click(action)
            case Type():
                self._press(type_characters(action.text))
            case Key():
                self._press(press(action.keys))
            case Drag():
                self._drag(action)
            case Scroll():
                self._scroll(action)
            case Wait():
                time.sleep(action.seconds)
            case _:
                return
        self._settle()

    def _click(self, action: Click) -> None:
        x, y = self._point(action.x, action.y)
        self._move(x, y)
        for number in range(1, action.times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self._mouse(kind, x, y, button=action.button, clickCount=number)

    def _drag(self, action: Drag) -> None:
        x, y = self._point(action.x, action.y)
        to_x, to_y = self._point(action.to_x, action.to_y)
        self._move(x, y)
        self._mouse("mousePressed", x, y, button="left", clickCount=1)
        for number in range(1, _DRAG_MOVES + 1):
            part = number / _DRAG_MOVES
            self._mouse("mouseMoved", x + (to_x - x) * part, y + (to_y - y) * part, button="left", buttons=1)
        self._mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)

    def _scroll(self, action: Scroll) -> None:
        x, y = self._point(action.x, action.y)
        distance = action.amount * _NOTCH * (-1 if action.direction in ("up", "left") else 1)
        sideways = action.direction in ("left", "right")
        self._mouse("mouseWheel", x, y, deltaX=distance if sideways else 0, deltaY=0 if sideways else distance)

    def _press(self, events: Iterator[dict[str, Any]]) -> None:
        for event in list(events):  # all of them are known before the first is pressed
            self._call("Input.dispatchKeyEvent", **event)

    def _move(self, x: float, y: float) -> None:
        self._mouse("mouseMoved", x, y)

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def _point(self, x: int, y: int) -> tuple[float, float]:
        return x / self._scale, y / self._scale

    def _settle(self) -> None:
        self._evaluate(_SETTLED)

    def _evaluate(self, expression: str) -> Any:
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            thrown = found["exceptionDetails"]
            said = thrown.get("exception", {}).get("description") or thrown.get("text", "")
            raise BrowserError(f"the page's script failed: {said[:_LONGEST_WORDS]}")
        return found["result"].get("value")

    def _call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        return self._browser.tools.call(method, self._browser.session, **parameters)

    def _lines(self, element: Mapping[str, Any]) -> Iterator[str]:
        tag = str(element.get("tag", "")).lower()
        words = " ".join(str(element.get("text") or "").split())[:_LONGEST_WORDS]
        if words or "value" in element or tag in _CONTROLS:
            yield self._line(element, tag, words)
        for child in element.get("children", ()):
            yield from self._lines(child)

    def _line(self, element: Mapping[str, Any], tag: str, words: str) -> str:
        x = round((element["left"] + element["width"] / 2) * self._scale)
        y = round((element["top"] + element["height"] / 2) * self._scale)
        seen = 0 <= x < self.screen.width and 0 <= y < self.screen.height
        parts = ["text" if tag == "t" else tag]
        if name := element.get("id"):
            parts.append(f"#{name}")
        if words:
            parts.append(f'"{words}"')
        if tag in _TYPED:
            parts.append(f"holds {str(element['value'])[:_LONGEST_WORDS]!r}")
        elif isinstance(value := element.get("value"), bool):
            parts.append("checked" if value else "not checked")
        if element.get("focused"):
            parts.append("focused")
        parts.append(f"at x={x}, y={y}" if seen else "not on the screen: scroll to it")
        return " ".join(parts)
