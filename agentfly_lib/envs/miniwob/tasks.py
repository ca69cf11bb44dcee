"""Which pages are played, from which seeds, and what is shown of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentfly_lib.envs.environment import EnvironmentSettings
from agentfly_lib.envs.miniwob.actions import ACTIONS
from agentfly_lib.envs.miniwob.chromium import find_browser
from agentfly_lib.envs.miniwob.page import Page, pages_folder
from agentfly_lib.errors import ConfigError

__all__ = ["MiniWobSettings", "actions", "check", "open_page", "problems"]

QUESTION = "Do what the page asks for."
_FIRST_EVAL_SEED = 1_000_000

ActionName = Literal["click", "type", "scroll", "drag", "key", "wait", "finished"]
PageName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class MiniWobSettings(EnvironmentSettings):
    """Pages, and how they are shown."""

    pages: Annotated[tuple[PageName, ...], Field(min_length=1)] = (
        "choose-list",
        "click-button",
        "click-button-sequence",
        "click-checkboxes",
        "click-checkboxes-soft",
        "click-collapsible-nodelay",
        "click-dialog",
        "click-link",
        "click-option",
        "click-shape",
        "click-tab",
        "click-test",
        "click-test-2",
        "click-widget",
        "drag-box",
        "enter-password",
        "enter-text",
        "enter-text-dynamic",
        "focus-text",
        "focus-text-2",
        "grid-coordinate",
        "login-user",
        "navigate-tree",
        "read-table",
        "use-autocomplete-nodelay",
    )
    """Any of the package's 130. Those that move by themselves run in real time, so an episode of one is not wholly a
    function of its seed."""
    observation: Literal["screen", "text", "both"] = "screen"
    """What is seen: a picture, or one line for each thing on the page with where it is, or both."""
    actions: Annotated[tuple[ActionName, ...], Field(min_length=1)] = (
        "click",
        "type",
        "scroll",
        "drag",
        "key",
        "wait",
        "finished",
    )
    """The agent's tools."""
    scale: Annotated[int, Field(ge=1, le=8)] = 2
    """Screen pixels per pixel of a page, which has 160 x 210. Give GUI agents `screen_width` and `screen_height` to
    match: 320 and 420 for 2."""
    train_episodes: PositiveInt = 100
    """Of each page."""
    eval_episodes: PositiveInt = 4
    """Of each page, from other seeds."""
    seconds: PositiveFloat = 20.0
    """Limit of each thing that is asked of the browser."""


def actions(settings: MiniWobSettings) -> list[Callable[..., str]]:
    """The agent's tools."""
    return [action for action in ACTIONS if action.__name__ in settings.actions]


def check(settings: MiniWobSettings) -> None:
    """Raises `UserError` if the browser, the pages, or one of those that are named is not there."""
    find_browser()
    folder = _folder()
    missing = [name for name in settings.pages if not (folder / "miniwob" / f"{name}.html").is_file()]
    if missing:
        raise ConfigError(f"miniwob has no page {missing[0]!r}; the pages are the *.html of {folder / 'miniwob'}")


def problems(settings: MiniWobSettings, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """Rows: `page`, `seed`, and in `images` the first screen where it is shown. Every page comes once before any does
    again."""
    check(settings)
    count, first = (settings.train_episodes, 0) if split == "train" else (settings.eval_episodes, _FIRST_EVAL_SEED)
    rows = (
        {"id": f"{name}/{seed}", "question": QUESTION, "page": name, "seed": seed}
        for seed in range(first, first + count)
        for name in settings.pages
    )
    if settings.observation == "text":
        yield from rows
        return
    page = open_page(settings)
    try:
        for row in rows:
            page.begin(row["page"], row["seed"])
            picture = base64.b64encode(page.picture()).decode()
            yield row | {"images": [f"data:image/png;base64,{picture}"]}
    finally:
        page.close()


def open_page(settings: MiniWobSettings) -> Page:
    """A browser. Raises `UserError` if one cannot be had, `BrowserError` if it does not start."""
    return Page(_folder(), scale=settings.scale, seconds=settings.seconds)


def _folder() -> Path:
    folder = pages_folder()
    if folder is None or not (folder / "miniwob").is_dir():
        raise ConfigError("the pages of miniwob are not installed: `pip install --no-deps miniwob==1.1.0`")
    return folder
