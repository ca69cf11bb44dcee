"""Answers to questions in words: where a response states its answer, and which answers are right."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["accepted_answers", "stated_answer"]

_CLOSE, _OPEN = "</answer>", "<answer>"
_PREFIX = re.compile(r"final answer\s*:|answer\s+is\b:?", re.IGNORECASE)


def stated_answer(text: str) -> str:
    """What a response answers: its last whole `<answer>`, else what follows the last "Final Answer:" or "answer is" in
    its line, else all of it.
    """
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    if start >= 0:
        return text[start + len(_OPEN) : end].strip()
    if stated := list(_PREFIX.finditer(text)):
        return text[stated[-1].end() :].strip().partition("\n")[0].strip(" *`")
    return text.strip()


def accepted_answers(value: object) -> list[str]:
    """The right answers in a dataset's column: one, or several of which any will do."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [str(item) for item in value]
    return [str(value)]
