"""Exact arithmetic on text: what the calculator calculates.

The expression is parsed by Python's parser, and only its tree of numbers and operators is walked; nothing is evaluated
by Python itself. Numbers are fractions, so `0.1 + 0.2` is 0.3; only a root (`2 ** 0.5`) is a float. Length, nesting and
the size of every intermediate result are bounded, which bounds the time too.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

__all__ = ["ExpressionError", "evaluate", "format_number"]

Number = Fraction | float

MAX_LENGTH = 500
"""Characters of an expression."""
MAX_DEPTH = 260
"""Operators on the way from the result to a number; sums of 250 numbers fit."""
MAX_BITS = 4096
"""Size of numerators and denominators on the way."""
MAX_DIGITS = 100
"""Digits of an integer result that is shown."""
MAX_EXPONENT = 400
"""Power of ten in `1e400`."""
SHOWN_DIGITS = 10
"""Significant digits of a result that is no integer; more where that many stand before the point."""


class ExpressionError(ValueError):
    """Why an expression has no result; the message is for the model."""


_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_LEADING_ZEROS = re.compile(r"(?<![\d.eE])(?<![eE][+-])0+(?=\d)")
_FOREIGN = re.compile(r"[A-Za-z_]\w*|[^\s\d.+\-*/%()]")
_EXPONENT = re.compile(r"(?<=[\d.])[eE][+-]?\d+")
_ALLOWED = "only numbers, + - * / // % ** and parentheses are allowed"


def evaluate(expression: str) -> Number:
    """The value of an expression. Raises `ExpressionError` for anything that is not bounded arithmetic."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(expression)} characters, at most {MAX_LENGTH} are allowed")
    text = expression.translate(_SPELLINGS).strip()
    if not text:
        raise ExpressionError("the expression is empty")
    text = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    text = " ".join(_LEADING_ZEROS.sub("", text).split())
    if foreign := _FOREIGN.search(_EXPONENT.sub("", text)):
        raise ExpressionError(f"{foreign.group()!r} is not allowed, {_ALLOWED}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{expression.strip()!r} is not a valid expression") from error
    return _value(tree.body, text, 0)


def format_number(value: Number) -> str:
    """Integers as integers, everything else rounded to `SHOWN_DIGITS`."""
    if isinstance(value, float):
        value = Fraction(value)
    if value.denominator == 1:
        text = str(value.numerator)
        digits = len(text.lstrip("-"))
        if digits > MAX_DIGITS:
            raise ExpressionError(f"the result has {digits} digits, at most {MAX_DIGITS} are shown")
        return text
    number = _divided(value, SHOWN_DIGITS)
    scale = number.adjusted()
    if not -7 < scale < 20:
        return format(number, "e")
    if scale + 3 > SHOWN_DIGITS:  # all digits before the point, and two after it
        number = _divided(value, scale + 3)
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _divided(value: Fraction, digits: int) -> Decimal:
    context = Context(prec=digits, Emin=-99999, Emax=99999)
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def _value(node: ast.expr, text: str, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"the expression is nested more than {MAX_DEPTH} deep")
    if isinstance(node, ast.Constant):
        return _number(node, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand, text, depth + 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, text, depth + 1), _value(node.right, text, depth + 1)
        try:
            return _bounded(_OPERATORS[type(node.op)](left, right))
        except ZeroDivisionError as error:
            raise ExpressionError("division by zero") from error
        except OverflowError as error:
            raise ExpressionError("a number is too large") from error
    if isinstance(node, ast.Call):
        raise ExpressionError("write * to multiply: 2 * (3), not 2(3)")
    raise ExpressionError(f"this is not arithmetic, {_ALLOWED}")


def _number(node: ast.Constant, text: str) -> Fraction:
    # From the source, not from the parsed constant: 0.1 is a tenth here and not the nearest binary float.
    literal = text[node.col_offset : node.end_col_offset]
    _, _, exponent = literal.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise ExpressionError(f"the power of ten in {literal} is beyond {MAX_EXPONENT}")
    try:
        return Fraction(literal)
    except ValueError as error:
        raise ExpressionError(f"{literal!r} is not a number") from error


def _bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExpressionError("a number is too large")
        return value
    value = Fraction(value)  # the quotient of // is an int
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ExpressionError("a number is too large")
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        power = exponent.numerator
        size = max(abs(base.numerator), base.denominator).bit_length() - 1
        if size * abs(power) > MAX_BITS:
            raise ExpressionError("a number is too large")
        return base**power
    if base < 0:
        raise ExpressionError("a root of a negative number is not a real number")
    return float(base) ** float(exponent)


_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
