"""How an answer in words is compared with the right one: SQuAD's normal form, equality, and token F1.

Rajpurkar et al. 2016, arXiv 1606.05250: lower case, no punctuation, no articles, single spaces.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

__all__ = ["exact_match", "normalize_answer", "token_f1"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """SQuAD's normal form."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(given: str, accepted: Iterable[str]) -> float:
    """1 if the normal forms of the answer and of one that is accepted are equal, else 0."""
    normal = normalize_answer(given)
    return float(any(normal == normalize_answer(right) for right in accepted))


def token_f1(given: str, accepted: Iterable[str]) -> float:
    """The best F1 of the answer's words and those of one that is accepted."""
    words = normalize_answer(given).split()
    return max((_f1(words, normalize_answer(right).split()) for right in accepted), default=0.0)


def _f1(given: list[str], right: list[str]) -> float:
    if not given or not right:  # nothing agrees with nothing only (SQuAD 2.0)
        return float(given == right)
    common = sum((Counter(given) & Counter(right)).values())
    return 2 * common / (len(given) + len(right))
