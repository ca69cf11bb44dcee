"""BM25 over English texts as Lucene does it: stemmed words without stop words, scored by `bm25s`.

Settings are those of the published retrieval baselines (Pyserini): k1 = 0.9, b = 0.4, Lucene's idf. Equal scores keep
the documents' order, as in Lucene.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["PACKAGES", "Bm25Index"]

PACKAGES = {"bm25s": "bm25s", "Stemmer": "PyStemmer"}
"""Module and distribution of what it needs."""


class Bm25Index:
    """An index in memory over documents, which are known by their number. Threads may share one."""

    def __init__(self, texts: Sequence[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        import bm25s
        import Stemmer

        self._stemmer = Stemmer.Stemmer("english")
        self._stemming = threading.Lock()  # a stemmer serves one thread at a time
        self._size = len(texts)
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        tokens: Any = bm25s.tokenize(list(texts), stopwords="en", stemmer=self._stemmer, show_progress=False)
        self._empty = not any(tokens.ids)
        if not self._empty:
            self._index.index(tokens, show_progress=False)

    def __len__(self) -> int:
        return self._size

    def words(self, text: str) -> list[str]:
        """What a query is to the index: its words in lower case, stemmed, without stop words."""
        import bm25s

        with self._stemming:
            tokens: Any = bm25s.tokenize(
                [text], stopwords="en", stemmer=self._stemmer, show_progress=False, return_ids=False
            )
        return list(tokens[0])

    def top(self, query: str, count: int) -> list[tuple[int, float]]:
        """Numbers and scores of the best documents that share a word with the query, best first."""
        words = [] if self._empty else self.words(query)
        if not words:
            return []
        scores = np.asarray(self._index.get_scores(words))
        best = np.arange(self._size)
        if count < self._size:
            border = np.partition(scores, self._size - count)[self._size - count]
            best = np.flatnonzero(scores >= border)
        best = best[np.lexsort((best, -scores[best]))][:count]
        return [(int(number), float(scores[number])) for number in best if scores[number] > 0]

    def search(self, queries: Sequence[str], count: int) -> list[list[tuple[int, float]]]:
        """`top` of each query."""
        return [self.top(query, count) for query in queries]
