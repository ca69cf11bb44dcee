"""Final answers in text: where they stand, what number they are, and whether two are the same, decided in microseconds.

An answer is, in this order: the last complete `\\boxed{...}`, what follows the last `####`, what follows "the answer
is", the last number. Numbers compare exactly, as fractions: thousands commas, `$`, `%`, units and simple fractions in
LaTeX are understood. What this cannot decide (LaTeX that is more than a number) is left to symbolic comparison.
"""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["equal_answers", "extract_answer", "parse_number", "reference_answer"]

MAX_ANSWER = 300
"""Characters; a longer text is no answer."""
MAX_DIGITS = 300
"""Digits of a number that is compared exactly."""

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_PLAIN = re.compile(rf"[+-]?(?:{_NUMBER})")
_RATIO = re.compile(rf"([+-]?)\s*(?:(\d+)\s+)?({_NUMBER})\s*/\s*({_NUMBER})")
_LAST_NUMBER = re.compile(rf"(?:(?<=[\s(=:$])|^)[+-]?\$?(?:{_NUMBER})(?:/\d+)?|(?:{_NUMBER})", re.MULTILINE)
_ANSWER_IS = re.compile(r"answer\s*(?:is|:)[ \t:]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?=\s|$)")
_FRACTION = re.compile(r"(\d*)\s*\\[dt]?frac\s*\{\s*([+-]?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}")
_WORDS = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\[!,;: ]|\\left|\\right|\\[$%]|[$%€£°~]|\^\s*(?:\{\s*)?\\circ\s*\}?")
_NAME = re.compile(r"^\s*[A-Za-z]\w{0,20}\s*=\s*")
_UNIT = re.compile(r"(?<=[\d.])\s*(?:[A-Za-z][A-Za-z\s./-]*)$")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MATHS = re.compile(r"[\\^{}]|_\d")


def extract_answer(text: str) -> str | None:
    """The final answer that a response states, or None if it states none."""
    if "\\boxed" in text or "\\fbox" in text:
        return _last_boxed(text)
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0].strip()
    if stated := list(_ANSWER_IS.finditer(text)):
        line = text[stated[-1].end() :].lstrip().partition("\n")[0]
        return _SENTENCE_END.split(line, maxsplit=1)[0].strip(" *`")
    numbers = _LAST_NUMBER.findall(text)
    return numbers[-1] if numbers else None


def reference_answer(value: object) -> str:
    """The right answer in a dataset's column: a number, a text, or a worked solution that ends in one."""
    text = str(value).strip()
    if "\\boxed" in text:
        return _last_boxed(text) or text
    return text.rpartition("####")[2].strip() if "####" in text else text


def parse_number(text: str) -> Fraction | None:
    """The number that an answer is, units and decoration aside, or None if it is none."""
    text = text.strip()
    if _PLAIN.fullmatch(text):
        return _fraction(text)
    if len(text) > MAX_ANSWER:
        return None
    text = _WORDS.sub(lambda match: match.group(1) if _PLAIN.fullmatch(match.group(1).strip()) else " ", text)
    text = _FRACTION.sub(lambda match: f"{match.group(1)} {match.group(2)}/{match.group(3)}".strip(), text)
    text = _NAME.sub("", _NOISE.sub("", text)).strip().removesuffix(".").strip()
    text = _UNIT.sub("", text).strip()
    text = text.removeprefix("{").removesuffix("}") if text.startswith("{") else text
    if _PLAIN.fullmatch(text):
        return _fraction(text)
    ratio = _RATIO.fullmatch(text)
    if ratio is None:
        return None
    sign, whole, numerator, denominator = ratio.groups()
    top, bottom = _fraction(numerator), _fraction(denominator)
    if top is None or not bottom:
        return None
    return (-1 if sign == "-" else 1) * (Fraction(whole or 0) + top / bottom)


def equal_answers(given: str | None, reference: str) -> bool | None:
    """Whether an answer equals the right one; None if only a symbolic comparison can tell.

    Where the right answer is a number, a calculation that was not carried out (`3 + 4`) is no answer.
    """
    if given is None or not given or len(given) > MAX_ANSWER:
        return False
    number, right = parse_number(given), parse_number(reference)
    if number is not None and right is not None:
        return number == right
    if _canonical(given) == _canonical(reference):
        return True
    if right is not None:
        # A box that does not balance is no mathematics, and not worth a worker's time.
        return None if _MATHS.search(given) and given.count("{") == given.count("}") else False
    return None if _is_maths(reference) else False


def _last_boxed(text: str) -> str | None:
    """Content of the last box that is closed."""
    closing = _closing_braces(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = closing.get(box.end() - 1)
        if end is not None:
            return text[box.end() : end].strip()
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """Where each opening brace that is closed is closed: in one pass, however many boxes a response opens."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for brace in re.finditer("[{}]", text):
        if brace.group() == "{":
            opened.append(brace.start())
        elif opened:
            closing[opened.pop()] = brace.start()
    return closing


def _fraction(text: str) -> Fraction | None:
    return Fraction(text.replace(",", "")) if len(text) <= MAX_DIGITS else None


def _canonical(text: str) -> str:
    text = _WORDS.sub(r"\1", text)
    return "".join(_NOISE.sub("", text).split()).strip("().").casefold()


def _is_maths(text: str) -> bool:
    """More than words: something that a symbolic comparison can read."""
    return bool(_MATHS.search(text) or re.search(r"\d|[=+*/<>|]", text))
