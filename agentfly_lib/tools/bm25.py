"""A BM25 index in memory: which documents say a query's words, weighted by how rare the words are.

Weights are Lucene's: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), and tf / (tf + k1 (1 - b + b length / mean length)), for
N documents of which n have the word (Robertson and Zaragoza, 2009). A word is a run of letters and digits, in lower
case.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np

__all__ = ["Bm25", "words"]

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(text.lower())


class Bm25:
    """An index over documents, which are known by their number."""

    def __init__(self, documents: Iterable[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        self._vocabulary: dict[str, int] = {}
        terms, owners, counts, lengths = array("i"), array("i"), array("i"), array("i")
        for number, document in enumerate(documents):
            found = Counter(words(document))
            lengths.append(found.total())
            for word, count in found.items():
                terms.append(self._vocabulary.setdefault(word, len(self._vocabulary)))
                owners.append(number)
                counts.append(count)
        self._size = len(lengths)
        term, owner, count = (np.array(values, dtype=np.int32) for values in (terms, owners, counts))
        order = np.argsort(term, kind="stable")
        self._documents = owner[order]
        frequency = np.bincount(term, minlength=len(self._vocabulary))
        self._bounds = np.concatenate([[0], np.cumsum(frequency)])
        length = np.array(lengths, dtype=np.float64)
        norm = k1 * (1 - b + b * length / max(1.0, length.mean() if self._size else 1.0))
        idf = np.log1p((self._size - frequency + 0.5) / (frequency + 0.5))
        weight = idf[term] * count / (count + norm[owner])
        self._weights = weight[order].astype(np.float32)

    def __len__(self) -> int:
        return self._size

    def top(self, query: str, count: int) -> list[tuple[int, float]]:
        """Numbers and scores of the best documents that share a word with the query; equal ones in their order."""
        scores = np.zeros(self._size, dtype=np.float32)
        for word, times in Counter(words(query)).items():
            term = self._vocabulary.get(word)
            if term is not None:
                place = slice(self._bounds[term], self._bounds[term + 1])
                scores[self._documents[place]] += times * self._weights[place]
        found = np.flatnonzero(scores)
        best = found[np.lexsort((found, -scores[found]))][:count]
        return [(int(number), float(scores[number])) for number in best]
