"""Actions on a screen: read without evaluating anything, and never outside the screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.chat import MalformedCall, ToolCall
from agentfly_lib.chat.gui_action import GuiActionParser, Screen

PARSER = GuiActionParser(Screen(width=100, height=50))


def only(text: str) -> ToolCall | MalformedCall:
    (call,) = PARSER.parse(text).calls
    return call


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("click(x=0, y=49)", "click", {"x": 0, "y": 49}),
        ("click( x = 99 , y=0 , button='right' )", "click", {"x": 99, "y": 0, "button": "right"}),
        ('type(text="a, b) \\"c\\"\\n")', "type", {"text": 'a, b) "c"\n'}),
        ("type(text='it\\'s')", "type", {"text": "it's"}),
        ("scroll(x=1, y=2, direction='down', amount=5)", "scroll", {"x": 1, "y": 2, "direction": "down", "amount": 5}),
        ("drag(x=1, y=2, to_x=99, to_y=49)", "drag", {"x": 1, "y": 2, "to_x": 99, "to_y": 49}),
        ("key(keys='ctrl+c')", "key", {"keys": "ctrl+c"}),
        ("wait(seconds=0.5)", "wait", {"seconds": 0.5}),
        ("finished()", "finished", {}),
        ("any(flag=True, other=false, big=-12)", "any", {"flag": True, "other": False, "big": -12}),
    ],
)
def test_actions(text, name, arguments):
    assert only(f"Thought: there.\nAction: {text}") == ToolCall(id="call-0", name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("click(x=100, y=0)", "x=100 is not on the screen, which is 100 pixels wide (0 to 99)"),
        ("click(x=0, y=50)", "y=50 is not on the screen, which is 50 pixels high (0 to 49)"),
        ("click(x=-1, y=0)", "x=-1 is not on the screen"),
        ("drag(x=0, y=0, to_x=100, to_y=0)", "to_x=100 is not on the screen"),
        ("drag(x=0, y=0, to_x=0, to_y=999)", "to_y=999 is not on the screen"),
        ("click(x=1.5, y=0)", "x must be a whole number of pixels, got 1.5"),
        ("click(x='1', y=0)", 'x must be a whole number of pixels, got "1"'),
        ("click(x=true, y=0)", "x must be a whole number of pixels"),
        ("click", "is no call"),
        ("", "is no call"),
        ("(x=1)", "is no call"),
        ("click(x=1 y=2)", "needs , or )"),
        ("click(1, 2)", "arguments by name"),
        ("click(x=1,)", "arguments by name"),
        ("click(x=__import__('os'))", "needs a number or a quoted text"),
        ("click(x=1+1)", "needs , or )"),
        ("click(x=1e5)", "needs a number or a quoted text"),
        ("click(x=" + "9" * 5000 + ")", "needs a number or a quoted text"),
        ("type(text='open", "needs a number or a quoted text"),
        ("click(x=1, x=2)", "has x twice"),
        ("click(x=1, y=2) and more", "Nothing may follow"),
        ("click(x=1", "needs , or )"),
        ("f(" + "(" * 5000, "arguments by name"),
    ],
)
def test_what_cannot_be_done_is_named(text, expected):
    call = only(f"Action: {text}")
    assert isinstance(call, MalformedCall)
    assert expected in call.message


def test_without_an_action():
    call = only("I would click the button.")
    assert isinstance(call, MalformedCall)
    assert "has no action" in call.message


def test_only_the_first_action_is_taken():
    first, second = PARSER.parse("Action: key(keys='a')\nAction: key(keys='b')").calls
    assert first == ToolCall(id="call-0", name="key", arguments={"keys": "a"})
    assert isinstance(second, MalformedCall)
    assert "Only one action" in second.message


@given(st.text(st.sampled_from("acx=,()'\"\\ 1.\n"), max_size=30))
def test_any_text_is_taken_apart(text):
    for call in PARSER.parse(f"Action: {text}").calls:
        if isinstance(call, ToolCall):
            for name, size in (("x", 100), ("y", 50)):
                assert 0 <= call.arguments.get(name, 0) < size
