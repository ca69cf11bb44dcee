"""MiniWoB in a real Chromium: scripted policies earn what the pages give, and the browser is locked up."""

from __future__ import annotations

import base64
import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from agentfly_lib.agents.gui_tools import gui_tools
from agentfly_lib.chat.gui_action import Screen
from agentfly_lib.envs.environment import Environment
from agentfly_lib.envs.miniwob import KIND, MiniWob, MiniWobSettings
from agentfly_lib.envs.miniwob.actions import (
    ACTIONS,
    Click,
    Finished,
    Key,
    NoAction,
    Type,
    Wait,
    click,
    drag,
    finished,
    key,
    read_action,
    scroll,
    type_text,
    wait,
)
from agentfly_lib.envs.miniwob.keyboard import press, type_characters
from agentfly_lib.envs.miniwob.tasks import check
from agentfly_lib.errors import ConfigError, DataError, EnvironmentFailure, SandboxUnavailableError, UserError
from agentfly_lib.tools import tool


@pytest.fixture(scope="module")
def browser() -> None:
    """Skips where there is no browser or no page, with what the environment itself says about it."""
    try:
        check(MiniWobSettings())
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def environment(browser: None) -> Iterator[MiniWob]:
    environment = MiniWob(observation="both", seconds=60)
    yield environment
    environment.close()


class Seen:
    """A page as its outline tells it."""

    def __init__(self, observation: str) -> None:
        first, *self.lines = observation.split("\n")
        self.asks = first.removeprefix("The page asks: ")

    def at(self, pattern: str) -> tuple[int, int]:
        """Where the first line is that the pattern is found in."""
        line = next(line for line in self.lines if re.search(pattern, line))
        found = re.search(r"at x=(\d+), y=(\d+)", line)
        assert found, line
        return int(found[1]), int(found[2])

    def quoted(self) -> list[str]:
        return re.findall(r'"([^"]*)"', self.asks)


def click_test(seen: Seen) -> Iterator[str]:
    yield click(*seen.at("#subbtn"))


def click_button(seen: Seen) -> Iterator[str]:
    yield click(*seen.at(f'button "{re.escape(seen.quoted()[0])}"'))


def enter_text(seen: Seen) -> Iterator[str]:
    yield click(*seen.at("#tt"))
    yield type_text(seen.quoted()[0])
    yield click(*seen.at("#subbtn"))


def click_checkboxes(seen: Seen) -> Iterator[str]:
    wanted = seen.asks.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for words in wanted if wanted != ["nothing"] else ():
        index = next(i for i, line in enumerate(seen.lines) if f'"{words}"' in line)
        yield click(*Seen("\n" + seen.lines[index - 1]).at("input_checkbox"))
    yield click(*seen.at("#subbtn"))


def login_user(seen: Seen) -> Iterator[str]:
    name, password = seen.quoted()
    yield click(*seen.at("#username"))
    yield type_text(name)
    yield key("tab")
    yield type_text(password)
    yield click(*seen.at("#subbtn"))


def choose_list(seen: Seen) -> Iterator[str]:
    yield click(*seen.at("select"))
    yield type_text(seen.asks.removeprefix("Select ").removesuffix(" from the list and click Submit."))
    yield key("enter")
    yield click(*seen.at("Submit"))


def focus_text(seen: Seen) -> Iterator[str]:
    yield click(*seen.at("input_text"))


POLICIES: dict[str, Callable[[Seen], Iterator[str]]] = {
    "click-test": click_test,
    "click-button": click_button,
    "enter-text": enter_text,
    "click-checkboxes": click_checkboxes,
    "login-user": login_user,
    "choose-list": choose_list,
    "focus-text": focus_text,
}


def play(environment: MiniWob, page: str, seed: int) -> float:
    actions = POLICIES[page](Seen(environment.reset({"page": page, "seed": seed})))
    for action in actions:
        result = environment.step(action)
        assert result.error is None
        if result.done:
            return result.reward
    raise AssertionError(f"{page} did not end")


@pytest.mark.parametrize("page", POLICIES)
def test_a_scripted_policy_earns_everything(environment: MiniWob, page: str) -> None:
    assert [play(environment, page, seed) for seed in range(3)] == [1.0] * 3


def test_a_random_policy_does_not(environment: MiniWob) -> None:
    chance, total, episodes = random.Random(0), 0.0, 0
    for page in ("click-button", "enter-text", "click-checkboxes", "login-user"):
        for seed in range(2):
            environment.reset({"page": page, "seed": seed})
            episodes += 1
            for _ in range(4):
                result = environment.step(click(chance.randrange(320), chance.randrange(100, 420)))
                total += result.reward
                if result.done:
                    break
    assert total / episodes < 0.5


def test_what_was_wrong_is_worth_minus_one(environment: MiniWob) -> None:
    seen = Seen(environment.reset({"page": "enter-text", "seed": 0}))
    result = environment.step(click(*seen.at("#subbtn")))
    assert (result.done, result.reward, result.images) == (True, -1.0, ())
    with pytest.raises(RuntimeError):
        environment.step(wait(0))


def test_an_episode_that_is_given_up_is_worth_nothing(environment: MiniWob) -> None:
    environment.reset({"page": "enter-text", "seed": 0})
    result = environment.step(finished("no idea"))
    assert (result.done, result.reward) == (True, 0.0)


def size_of(picture: bytes) -> tuple[int, int]:
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", picture[16:24])


def test_screens_are_png_of_the_screens_size_and_follow_every_action(environment: MiniWob) -> None:
    seen = Seen(environment.reset({"page": "enter-text", "seed": 0}))
    before = environment.step(wait(0)).images
    environment.step(click(*seen.at("#tt")))
    after = environment.step(type_text("somebody")).images
    assert [size_of(picture) for picture in (*before, *after)] == [(320, 420)] * 2
    assert before != after


def test_the_same_seed_begins_the_same_page_and_another_one_another(environment: MiniWob) -> None:
    def begin(seed: int) -> tuple[str, bytes]:
        observation = environment.reset({"page": "click-checkboxes", "seed": seed})
        return observation, environment.step(wait(0)).images[0]

    first = begin(5)
    assert begin(6) != first
    assert begin(5) == first


def test_keys_drags_and_wheels_reach_the_page(environment: MiniWob) -> None:
    seen = Seen(environment.reset({"page": "enter-text", "seed": 0}))
    for action in (click(*seen.at("#tt")), type_text('say "a\\b"'), key("shift+1"), key("backspace")):
        environment.step(action)
    assert "holds 'say \"a\\\\b\"'" in environment.step(wait(0)).observation
    environment.step(key("ctrl+a"))
    assert "holds 'new'" in environment.step(type_text("new")).observation
    before = environment.reset({"page": "click-scroll-list", "seed": 0})
    x, y = Seen(before).at("select")
    assert environment.step(scroll(x, y, "down")).error is None
    environment.reset({"page": "drag-box", "seed": 0})
    picture = environment.step(wait(0)).images
    box = Seen(environment.reset({"page": "drag-box", "seed": 0})).at("div")
    assert environment.step(drag(*box, 100, 300)).images != picture


HOSTILE = [
    "",
    "click",
    "click(x=-1, y=0)",
    "click(x=320, y=0)",
    "click(x=1.5, y=0)",
    "click(x=1, y=1, times=1000)",
    "type(text=3)",
    "wait(seconds=1000)",
    "key(keys='ctrl+w')",
    "key(keys='f5')",
    "key(keys='alt+left')",
    "key(keys='++')",
    "navigate(url='http://127.0.0.1/')",
    "x" * (1 << 20),
    "type(text='" + "x" * (1 << 20) + "')",
]


def press_or_read(action: str) -> None:
    wanted = read_action(action, Screen(width=320, height=420))
    if isinstance(wanted, Key):
        list(press(wanted.keys))


@pytest.mark.parametrize("action", HOSTILE, ids=range(len(HOSTILE)))
def test_what_cannot_be_done_is_refused(action: str) -> None:
    with pytest.raises(NoAction) as refused:
        press_or_read(action)
    assert len(str(refused.value)) < 500


def test_a_refused_action_changes_nothing(environment: MiniWob) -> None:
    environment.reset({"page": "click-test", "seed": 0})
    for action in ("", "key(keys='ctrl+w')", "click(x=999, y=0)"):
        result = environment.step(action)
        assert result.error
        assert (result.done, result.reward, result.images) == (False, 0.0, ())
    assert play(environment, "click-test", 0) == 1.0


def test_every_character_can_be_typed(environment: MiniWob) -> None:
    seen = Seen(environment.reset({"page": "enter-text", "seed": 0}))
    environment.step(click(*seen.at("#tt")))
    result = environment.step(type_text("\x00\x1b\ud800 äß 漢 😀 \u202e"))
    assert result.error is None
    assert "äß 漢 😀" in result.observation


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (click(3, 4, "right", 2), Click(x=3, y=4, button="right", times=2)),
        (type_text('a "b"\n\t\\n\nAction: click(x=1, y=1)'), Type(text='a "b"\n\t\\n\nAction: click(x=1, y=1)')),
        (key("ctrl+a"), Key(keys="ctrl+a")),
        (wait(0.25), Wait(seconds=0.25)),
        (finished(), Finished()),
    ],
)
def test_what_an_action_writes_is_read_back(text: str, wanted: object) -> None:
    assert read_action(text, Screen(width=320, height=420)) == wanted


def test_actions_are_those_of_the_gui_agent() -> None:
    theirs = {each.name: each for each in gui_tools(lambda action, context: None)}
    ours = {each.__name__: tool(each) for each in ACTIONS}
    assert {name: (each.parameters, each.description) for name, each in ours.items()} == {
        name: (each.parameters, each.description) for name, each in theirs.items()
    }


def test_keys_are_pressed_with_what_they_type() -> None:
    events = [*press("shift+a"), *press("ctrl+c"), *type_characters("é\n")]
    pressed = [(event["key"], event.get("text"), event["modifiers"]) for event in events if event["type"] != "keyUp"]
    assert pressed == [("A", "A", 8), ("c", None, 2), ("é", "é", 0), ("Enter", "\r", 0)]


def test_the_page_reaches_neither_network_nor_files(environment: MiniWob) -> None:
    """What a page's script could do, were it hostile; `_ask` stands for such a script."""
    environment.reset({"page": "click-test", "seed": 0})

    def script(source: str) -> Any:
        return environment._ask(lambda page: page._evaluate(source))

    reached = "{}.then(() => 'reached', error => 'refused')"
    for url in ("http://127.0.0.1:80/", "http://10.0.0.1/", "file:///etc/fonts/fonts.conf", "file:///etc/passwd"):
        assert script(reached.format(f"fetch('{url}')")) == "refused"
    socket = """new Promise(done => {
        const socket = new WebSocket("ws://127.0.0.1:80/");
        socket.onopen = () => done("reached");
        socket.onerror = () => done("refused");
    })"""
    assert script(socket) == "refused"
    script("setTimeout(() => alert('stop'), 0)")
    assert environment.step(wait(0)).error is None


def test_a_page_that_hangs_costs_its_own_episode_and_no_more(browser: None) -> None:
    environment = MiniWob(observation="text", seconds=2)
    try:
        environment.reset({"page": "click-test", "seed": 0})
        with pytest.raises(EnvironmentFailure, match="no answer"):
            environment._ask(lambda page: page._evaluate("while (true) {}"))
        with pytest.raises(RuntimeError):
            environment.step(wait(0))
        environment._settings = MiniWobSettings(observation="text", seconds=60)
        assert play(environment, "click-test", 1) == 1.0
    finally:
        environment.close()


def test_closing_ends_the_whole_tree_and_a_second_time_does_nothing(browser: None) -> None:
    environment = MiniWob()
    assert isinstance(environment, Environment)
    assert environment._page is not None
    top = psutil.Process(environment._page.pid)
    tree = [top, *top.children(recursive=True)]
    assert len(tree) > 2
    assert os.readlink(f"/proc/{tree[-1].pid}/ns/net") != os.readlink("/proc/self/ns/net")
    environment.close()
    environment.close()
    assert psutil.wait_procs(tree, timeout=60)[1] == []


def test_rows_hold_the_first_screen_and_take_turns_over_the_pages(browser: None) -> None:
    settings = MiniWobSettings(pages=("click-test", "enter-text"), eval_episodes=2)
    rows = list(KIND.problems(settings, "eval"))
    assert [row["page"] for row in rows] == ["click-test", "enter-text"] * 2
    assert len({row["id"] for row in rows}) == 4
    environment = MiniWob(observation="both")
    try:
        for row in rows[:2]:
            environment.reset(row)
            picture = base64.b64decode(row["images"][0].removeprefix("data:image/png;base64,"))
            assert picture == environment.step(wait(0)).images[0]
    finally:
        environment.close()


def test_splits_share_no_seed(browser: None) -> None:
    settings = MiniWobSettings(observation="text")
    train, held_out = ({row["id"] for row in KIND.problems(settings, split)} for split in ("train", "eval"))
    assert (len(train), len(held_out), train & held_out) == (2500, 100, set())


def test_pages_that_are_not_there_are_named(browser: None) -> None:
    with pytest.raises(ConfigError, match="click-tset"):
        list(KIND.problems(MiniWobSettings(pages=("click-tset",)), "eval"))


def test_without_a_browser_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("agentfly_lib.envs.miniwob.chromium._BINARIES", ())
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap chromium"):
        check(MiniWobSettings())


def test_problems_that_are_none_are_refused(environment: MiniWob) -> None:
    for problem in (
        {},
        {"page": "click-test"},
        {"page": "../core/x", "seed": 1},
        {"page": "click-test", "seed": "1; alert(1)"},
    ):
        with pytest.raises(DataError):
            environment.reset(problem)
