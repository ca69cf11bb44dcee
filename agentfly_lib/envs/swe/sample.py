"""A few small repositories with a bug each, so that the environment can be tried without a dataset."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["SampleProblem", "sample_problems", "sample_rows"]

_EVAL = 2
"""How many of the last ones are the eval split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleProblem:
    """A module, the line that is wrong in it, and tests."""

    name: str
    statement: str
    code: str
    """As it should be."""
    right: str
    """A passage of the code."""
    wrong: str
    """What stands there instead."""
    shown: str
    """The body of a test that passes all the time."""
    hidden: str
    """The body of a test that passes when the bug is mended."""

    def row(self) -> dict[str, Any]:
        """In the columns of SWE-bench; `files` is the repository, and `patch` the solution."""
        module, tests = f"{self.name}.py", f"tests/test_{self.name}.py"
        broken = self.code.replace(self.right, self.wrong)
        shown = _TESTS.format(name=self.name, title=_title(self.name), method="usual", body=self.shown)
        after = f"{shown}\n    def test_reported(self):\n        {self.hidden}\n"
        place = f"tests.test_{self.name}.Test{_title(self.name)}"
        return {
            "id": f"sample-{self.name}",
            "question": self.statement,
            "files": {module: broken, tests: shown, "tests/__init__.py": ""},
            "patch": _diff(module, broken, self.code),
            "test_patch": _diff(tests, shown, after),
            "fail_to_pass": [f"{place}.test_reported"],
            "pass_to_pass": [f"{place}.test_usual"],
            "test_runner": "unittest",
        }


def sample_rows(split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """The problems as rows, without the solutions."""
    for problem in sample_problems(split):
        yield {name: value for name, value in problem.row().items() if name != "patch"}


def sample_problems(split: Literal["train", "eval"]) -> tuple[SampleProblem, ...]:
    """The problems of a split."""
    return _PROBLEMS[:-_EVAL] if split == "train" else _PROBLEMS[-_EVAL:]


_TESTS = """\
import unittest

from {name} import *


class Test{title}(unittest.TestCase):
    def test_{method}(self):
        {body}
"""

_PROBLEMS = (
    SampleProblem(
        name="clamp",
        statement="clamp(12, 0, 10) gives 12, but it should give the upper bound, 10. See clamp.py.",
        code="def clamp(value, low, high):\n    return max(low, min(value, high))\n",
        right="max(low, min(value, high))",
        wrong="max(low, value)",
        shown="self.assertEqual(clamp(-3, 0, 10), 0)",
        hidden="self.assertEqual([clamp(n, 0, 10) for n in (12, 10, 4)], [10, 10, 4])",
    ),
    SampleProblem(
        name="words",
        statement="words.count_words tells The and the apart. It should not mind capital letters.",
        code="def count_words(text):\n    counts = {}\n    for word in text.lower().split():\n"
        "        counts[word] = counts.get(word, 0) + 1\n    return counts\n",
        right="text.lower().split()",
        wrong="text.split()",
        shown="self.assertEqual(count_words('a b a'), {'a': 2, 'b': 1})",
        hidden="self.assertEqual(count_words('The the'), {'the': 2})",
    ),
    SampleProblem(
        name="leap",
        statement="leap.is_leap says that 1900 was a leap year. Years that end a century are none, unless 400 divides "
        "them.",
        code="def is_leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n",
        right=" and (year % 100 != 0 or year % 400 == 0)",
        wrong="",
        shown="self.assertEqual([is_leap(y) for y in (2023, 2024)], [False, True])",
        hidden="self.assertEqual([is_leap(y) for y in (1900, 2000, 2100)], [False, True, False])",
    ),
    SampleProblem(
        name="window",
        statement="window.moving_sums([1, 2, 3], 2) gives [3], but the last window, 2 + 3, is missing.",
        code="def moving_sums(numbers, size):\n"
        "    return [sum(numbers[i : i + size]) for i in range(len(numbers) - size + 1)]\n",
        right="len(numbers) - size + 1",
        wrong="len(numbers) - size",
        shown="self.assertEqual(moving_sums([], 2), [])",
        hidden="self.assertEqual(moving_sums([1, 2, 3], 2), [3, 5])",
    ),
    SampleProblem(
        name="flatten",
        statement="flatten.flatten leaves lists inside of lists inside of lists as they are: flatten([1, [2, [3]]]) "
        "should be [1, 2, 3].",
        code="def flatten(items):\n    flat = []\n    for item in items:\n"
        "        flat.extend(flatten(item) if isinstance(item, list) else [item])\n    return flat\n",
        right="flatten(item) if",
        wrong="item if",
        shown="self.assertEqual(flatten([1, [2]]), [1, 2])",
        hidden="self.assertEqual(flatten([1, [2, [3, []]]]), [1, 2, 3])",
    ),
    SampleProblem(
        name="initials",
        statement="initials.initials fails for a name with two spaces in a row. It should not.",
        code="def initials(name):\n    return ''.join(part[0].upper() for part in name.split())\n",
        right="name.split()",
        wrong="name.split(' ')",
        shown="self.assertEqual(initials('ada lovelace'), 'AL')",
        hidden="self.assertEqual(initials(' ada  lovelace '), 'AL')",
    ),
)


def _title(name: str) -> str:
    return name.capitalize()


def _diff(path: str, before: str, after: str) -> str:
    lines = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(*lines, fromfile=f"a/{path}", tofile=f"b/{path}"))
