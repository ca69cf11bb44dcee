"""Whatever is printed, the terminal only shows it."""

from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.visible import visible


def test_what_can_be_read_is_left_alone():
    assert visible("Größe 你好 🙂\n\tx") == "Größe 你好 🙂\n\tx"


def test_what_steers_is_shown():
    assert visible("\x1b[2J\x07\r\x9b\u202e\ud800") == "␛[2J␇␍\ufffd\ufffd\ufffd"


@given(st.text(st.characters(max_codepoint=0x2FFF) | st.characters(categories=["Cs", "Cc", "Cf"])))
def test_any_text_can_be_sent_and_holds_no_control_character(text):
    shown = visible(text)
    shown.encode()
    assert len(shown) == len(text)
    assert not [c for c in shown if (ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
