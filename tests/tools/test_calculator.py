"""The calculator: exact, bounded, and blind to everything that is not arithmetic."""

from __future__ import annotations

import json
import operator
import os
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.tools import ToolResult, calculator


def refused(expression: str) -> str:
    result = calculator(expression)
    assert isinstance(result, ToolResult), f"{expression!r} gave {result!r}"
    assert result.observation == f"Error: {result.error}"
    return result.error or ""


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("12 + 23", "35"),
        ("2 * (3 + 4)", "14"),
        ("2+3*4", "14"),
        ("7 - 10", "-3"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("2 ^ 10", "1024"),
        ("10 / 4", "2.5"),
        ("10 / 5", "2"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 // 2", "3"),
        ("0.1 + 0.2", "0.3"),
        ("1.10 * 3", "3.3"),
        ("1/3", "0.3333333333"),
        ("2/3", "0.6666666667"),
        ("1/3 * 3", "1"),
        ("10**18/3", "333333333333333333.33"),
        ("1 / 7000000000", "1.428571429e-10"),
        ("1,234 * 2", "2468"),
        ("1,234,567.5 + 0.5", "1234568"),
        ("1.5e3", "1500"),
        ("2**0.5", "1.414213562"),
        ("4**0.5", "2"),
        ("2**-3", "0.125"),
        ("007 + 1", "8"),
        ("3 × 4 ÷ 5 − 1", "1.4"),
        ("  3\n+ 4 ", "7"),
        ("--3", "3"),
        ("+3", "3"),
        (".5 + 5.", "5.5"),
        ("99 * 99", "9801"),
        ("+".join(["1"] * 250), "250"),
        ("(" * 100 + "1" + ")" * 100, "1"),
        ("1 ** 9 ** 99", "1"),
    ],
)
def test_values(expression, shown):
    assert calculator(expression) == shown


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "empty"),
        ("1 +", "not a valid expression"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("(-8) ** 0.5", "negative number"),
        ("2(3)", "write * to multiply"),
        ("5%", "not a valid expression"),
        ("1 2", "not a valid expression"),
        ("1,23", "',' is not allowed"),
        ("x + 1", "'x' is not allowed"),
        ("$5 + 1", "'$' is not allowed"),
        ("3 + 4 =", "'=' is not allowed"),
        ("...", "not a number"),
        ("1.2.3", "not a valid expression"),
        ("()", "not arithmetic"),
        ("1e5000", "power of ten"),
        ("10 ** 150", "151 digits"),
        ("9" * 101, "101 digits"),
    ],
)
def test_faults_are_explained(expression, message):
    assert message in refused(expression)


HOSTILE = [
    "__import__('os').system('id')",
    "().__class__.__bases__[0].__subclasses__()",
    "(1).__class__",
    "[x for x in range(9)]",
    "lambda: 1",
    "exec('1')",
    "'a' * 9",
    "f'{1}'",
    "1 if 1 else 2",
    "(x := 1)",
    "1; 2",
    "#\n1" * 2,
    "True + 1",
    "1_000 + 1",
    "0x10 + 1",
    "1j * 1j",
    "{1: 2}",
    "1 < 2",
    "1 | 2",
    "~1",
    "\x00",
    "１ + １",
    "\ud800",
]


@pytest.mark.parametrize("expression", HOSTILE)
def test_nothing_but_arithmetic(expression):
    refused(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "9 ** 9 ** 9 ** 9",
        "2 ** 5000",
        "(2 ** 4000) * (2 ** 4000)",
        "(10 ** 400) ** 400",
        "10 ** -100000",
        "0.5 ** 99999",
        "1.0000001 ** 99999999",
        "1e400 * 1e400 * 1e400 * 1e400",
        "(9.5 ** 0.5) ** 99999",
        "-" * 400 + "1",
        "(" * 450 + "1",
        "(" * 240 + "1" + ")" * 240,
        "1+" * 5000 + "1",
        "9" * 1_000_000,
        "**".join(["9"] * 150),
        "*".join(["9" * 24] * 20),
        "1/3+" * 120 + "1",
    ],
)
def test_size_and_time_are_bounded(expression):
    started = time.process_time()
    calculator(expression)
    assert time.process_time() - started < 0.2


numbers = st.integers(-999, 999).map(lambda n: (f"({n})", Fraction(n))) | st.integers(0, 99999).map(
    lambda n: (f"{n / 1000:.3f}", Fraction(n, 1000))
)
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def combine(inner):
    return st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda t: None if t[0] is None or t[2] is None or (t[1] == "/" and t[2][1] == 0)
        else (f"({t[0][0]} {t[1]} {t[2][0]})", OPERATORS[t[1]](t[0][1], t[2][1]))
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.recursive(numbers, combine, max_leaves=12))
def test_agrees_with_exact_fractions(pair):
    if pair is None:
        return
    expression, value = pair
    shown = calculator(expression)
    assert isinstance(shown, str)
    if value.denominator == 1:
        assert shown == str(value.numerator)
    else:
        assert abs(Fraction(shown) - value) <= abs(value) * Fraction(1, 10**9)


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789.,+-*/%()eE ^_x\n", max_size=40))
def test_any_text_has_an_answer(text):
    assert isinstance(calculator(text), str | ToolResult)


DATA = Path(os.environ.get("AGENTFLY_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data") / "gsm8k"


@pytest.mark.skipif(not DATA.is_dir(), reason="GSM8K is not here; AGENTFLY_TEST_DATA names the folder that has it")
def test_agrees_with_the_calculations_that_people_wrote_into_gsm8k():
    """They write `<<48/2=24>>`, mostly rounded to two decimals."""
    lines = (DATA / "test.jsonl").read_text().splitlines()
    pairs = [pair for line in lines for pair in re.findall(r"<<([^=<>]+)=([\d.]+)>>", json.loads(line)["answer"])]
    assert len(pairs) > 3000
    for expression, result in pairs:
        shown = calculator(expression)
        assert isinstance(shown, str), (expression, shown)
        assert abs(float(Fraction(shown)) - float(result)) <= 0.01 * max(1.0, float(result)), (expression, shown)
