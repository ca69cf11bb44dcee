"""Answers as people and models write them."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from time import process_time
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.rewards.answers import equal_answers, extract_answer, parse_number, reference_answer
from agentfly_lib.rewards.symbolic import symbolic_equal


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{42}.", "42"),
        ("\\boxed{1} or rather \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{ {a}, {b} }", "{a}, {b}"),
        ("\\boxed {7}", "7"),
        ("\\fbox{7}", "7"),
        ("\\boxed{}", ""),
        ("\\boxed{3} and then \\boxed{12", "3"),
        ("cut: \\boxed{12", None),
        ("\\boxed{3}} and \\boxed{\\boxed{4} {", "4"),
        ("work 3 * 4\n#### 12", "12"),
        ("#### 1,000\nmore", "1,000"),
        ("The answer is 12.", "12"),
        ("The answer is: **12**", "12"),
        ("the ANSWER is 3.5 km. Then 7", "3.5 km"),
        ("Answer: 5", "5"),
        ("The answer is 1. No, the answer is 2", "2"),
        ("It costs 3 and then 4 dollars", "4"),
        ("From 10-3 we get 7", "7"),
        ("10-3", "3"),
        ("It is -5", "-5"),
        ("about $1,234.50 in all", "$1,234.50"),
        ("\\boxed{8} The answer is 9", "8"),
        ("no idea", None),
        ("", None),
    ],
)
def test_where_an_answer_stands(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("value", "answer"),
    [(72, "72"), (0.5, "0.5"), (" 72 ", "72"), ("Natalia sold 48.\n#### 72", "72"), ("thus \\boxed{\\pi}", "\\pi")],
)
def test_where_the_right_answer_stands(value, answer):
    assert reference_answer(value) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("-42", -42),
        ("+3", 3),
        ("007", 7),
        ("4.50", Fraction(9, 2)),
        (".5", Fraction(1, 2)),
        ("1,234,567", 1234567),
        ("$18", 18),
        ("\\$18.00", 18),
        ("50%", 50),
        ("50\\%", 50),
        ("18 dollars", 18),
        ("18 square feet.", 18),
        ("5\\text{ cm}", 5),
        ("5~\\mathrm{km/h}", 5),
        ("\\text{12}", 12),
        ("90^\\circ", 90),
        ("90^{\\circ}", 90),
        ("x = 5", 5),
        ("total=5", 5),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("1 1/2", Fraction(3, 2)),
        ("\\frac{3}{4}", Fraction(3, 4)),
        ("-\\dfrac{3}{4}", Fraction(-3, 4)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("10\\,000", 10000),
        ("$42$", 42),
        ("12.", 12),
        ("", None),
        ("x", None),
        ("1/0", None),
        ("3 + 4", None),
        ("1,23", None),
        ("1.2.3", None),
        ("12 34", None),
        ("\\sqrt{2}", None),
        ("2^{10}", None),
        ("nan", None),
        ("inf", None),
        ("1e5", None),
        ("9" * 1000, None),
    ],
)
def test_numbers(text, number):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("given", "reference", "equal"),
    [
        ("42", "42", True),
        ("42.0", "42", True),
        ("1,000", "1000", True),
        ("0.5", "1/2", True),
        ("41", "42", False),
        ("0.3333", "1/3", False),
        (None, "42", False),
        ("", "42", False),
        ("forty-two", "42", False),
        ("3 + 4", "7", False),  # the calculation was not carried out
        ("x", "7", False),
        ("9" * 10_000, "7", False),
        ("B", "B", True),
        ("(B)", "B", True),
        ("\\text{B}", "b", True),
        ("C", "B", False),
        ("yes", "no", False),
        ("7", "B", False),
        ("\\sqrt{49}", "7", None),
        ("2^{3}", "8", None),
        ("x+1", "1+x", None),
        ("\\pi", "\\pi", True),
        ("3", "\\sqrt{9}", None),
    ],
)
def test_equality(given, reference, equal):
    assert equal_answers(given, reference) is equal


@given(st.fractions(max_denominator=999), st.sampled_from(["{}", "${}$", " {} ", "{} apples", "x = {}", "\\${}"]))
def test_decoration_does_not_change_a_number(number, pattern):
    assert parse_number(pattern.format(number)) == number


@given(st.text(max_size=80), st.text("0123456789.,/\\boxed{}$%- ", max_size=40))
def test_any_text_can_be_read(text, other):
    for value in (text, other, f"\\boxed{{{other}"):
        answer = extract_answer(value)
        assert equal_answers(answer, reference_answer(other)) in (True, False, None)


@pytest.mark.parametrize(
    ("given", "reference", "equal"),
    [
        ("\\sqrt{49}", "7", True),
        ("x+1", "1+x", True),
        ("(1, 2)", "(1,2)", True),
        ("\\{2, 1\\}", "\\{1, 2\\}", True),
        ("\\sqrt{50}", "7", False),
        ("\\frac{", "7", False),
        ("", "7", False),
    ],
)
def test_symbolic(given, reference, equal):
    assert symbolic_equal(given, reference) is equal


@pytest.mark.parametrize("error", [MemoryError, RecursionError, TypeError])
def test_what_an_answer_provokes_is_its_own_fault(monkeypatch, error):
    monkeypatch.setattr("math_verify.verify", Mock(side_effect=error))
    assert symbolic_equal("x+1", "1+x") is False


@pytest.mark.parametrize("text", ["\\boxed{" * 20_000, "\\boxed{" * 20_000 + "}" * 20_000, "\\boxed " * 20_000 + "{"])
def test_a_response_that_repeats_itself_is_read_in_one_pass(text):
    started = process_time()
    extract_answer(text)
    assert process_time() - started < 2  # a pass for each box would take minutes


def test_a_reference_that_is_mostly_space_is_compared_in_one_pass():
    started = process_time()
    assert equal_answers("x", "^" + " " * 200_000 + "x") is None
    assert process_time() - started < 2


DATA = Path(os.environ.get("AGENTFLY_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data") / "gsm8k"


@pytest.mark.skipif(not DATA.is_dir(), reason="GSM8K is not here; AGENTFLY_TEST_DATA names the folder that has it")
def test_every_solution_of_gsm8k_states_its_own_answer_and_not_the_next_ones():
    answers = [json.loads(line)["answer"] for line in (DATA / "test.jsonl").read_text().splitlines()]
    references = [text.rpartition("####")[2].strip() for text in answers]
    assert all(
        equal_answers(extract_answer(text), wanted) is True for text, wanted in zip(answers, references, strict=True)
    )
    for text, wanted, other in zip(answers, references, references[1:], strict=False):
        differ = int(wanted.replace(",", "")) != int(other.replace(",", ""))
        assert equal_answers(extract_answer(text), other) is not differ
