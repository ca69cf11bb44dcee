"""An index as the service uses it: documents, and the best of them for many queries at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentfly_lib.envs.search.bm25 import Bm25Index
from agentfly_lib.envs.search.corpus import Document, FileCorpus
from agentfly_lib.envs.search.dense import DenseIndex
from agentfly_lib.envs.search.generated import generate_corpus
from agentfly_lib.envs.search.settings import Bm25Config, IndexConfig

__all__ = ["Found", "Index", "open_index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A hit."""

    document: Document
    score: float


class _Ranker(Protocol):
    def search(self, queries: Sequence[str], count: int) -> list[list[tuple[int, float]]]: ...


class Index:
    """Documents that can be searched. One thread at a time."""

    def __init__(self, documents: Sequence[Document], ranker: _Ranker) -> None:
        self._documents = documents
        self._ranker = ranker

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, queries: Sequence[str], count: int) -> list[list[Found]]:
        """At most `count` hits for each query, best first."""
        return [
            [Found(document=self._documents[number], score=score) for number, score in row]
            for row in self._ranker.search(queries, count)
        ]


def open_index(config: IndexConfig) -> Index:
    """Reads and indexes a corpus. Raises `DataError` naming the line, `ModelError` for a bad encoder."""
    documents = generate_corpus(config.generated) if config.corpus is None else FileCorpus(config.corpus)
    if isinstance(config.method, Bm25Config):
        texts = [document.indexed_text for document in documents]
        return Index(documents, Bm25Index(texts, k1=config.method.k1, b=config.method.b))
    return Index(documents, DenseIndex(documents, config.method))
