"""BM25 by the formula, worked out by hand and by a slow implementation that shares nothing with ours."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.tools.bm25 import Bm25, words


def slow(documents: list[str], query: str, k1: float = 0.9, b: float = 0.4) -> list[float]:
    """Straight from the formula."""
    texts = [re.findall(r"\w+", document.lower()) for document in documents]
    mean = max(1.0, sum(map(len, texts)) / len(texts))
    scores = []
    for text in texts:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            holding = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            tf = text.count(word)
            score += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


def test_worked_example():
    """Two documents of two words each: length is the mean, so the norm is k1. One of two has `cat`: idf = ln 2."""
    ((number, score),) = Bm25(["a cat", "a dog"]).top("cat", 5)
    assert number == 0
    assert score == pytest.approx(math.log(2) / 1.9, rel=1e-6)


def test_rare_words_count_more_and_long_documents_less():
    index = Bm25(["common rare", "common common", "common filler filler filler"])
    assert [number for number, _ in index.top("common rare", 3)] == [0, 1, 2]
    assert [number for number, _ in index.top("common", 3)] == [1, 0, 2]


def test_nothing_in_common():
    assert Bm25(["a b", "c"]).top("d", 5) == []
    assert Bm25(["a b", "c"]).top("", 5) == []


def test_no_documents_and_empty_ones():
    assert Bm25([]).top("a", 5) == []
    assert len(Bm25(["", "a"])) == 2
    assert [number for number, _ in Bm25(["", "a"]).top("a", 5)] == [1]


def test_equal_documents_come_in_their_order():
    assert [number for number, _ in Bm25(["x", "x", "x"]).top("x", 2)] == [0, 1]


def test_words_of_any_script():
    assert words("Größe: 3.5, naïve_café, 北京") == ["größe", "3", "5", "naïve_café", "北京"]


texts = st.lists(st.sampled_from(["the", "cat", "dog", "sat", "Mat", "x1"]), max_size=8).map(" ".join)


@given(st.lists(texts, min_size=1, max_size=12), texts)
def test_agrees_with_the_formula(documents, query):
    expected = slow(documents, query)
    found = dict(Bm25(documents).top(query, len(documents)))
    assert found.keys() == {number for number, score in enumerate(expected) if score}
    for number, score in found.items():
        assert score == pytest.approx(expected[number], rel=1e-5)
    order = list(found.values())
    assert order == sorted(order, reverse=True)
