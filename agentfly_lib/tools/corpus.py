"""A corpus on disk as a search provider: a JSONL file, indexed in memory at the first search and then shared.

A row has a text (`text` or `contents`), and may have `title`, `url` and `id`, and `image`: a picture that the text
describes, as a path from the corpus's folder or a `data:` URL. It is read when a search finds the row.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentfly_lib.bounded import call_in_thread
from agentfly_lib.chat.images import ImageAccess, load_picture
from agentfly_lib.envs.search.corpus import parse_document
from agentfly_lib.errors import DataError, ImageError
from agentfly_lib.tools.bm25 import Bm25
from agentfly_lib.tools.search import SearchHit

__all__ = ["Corpus", "load_corpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents and their index."""

    path: Path
    documents: tuple[SearchHit, ...]
    images: tuple[str | None, ...]
    """What each row says of its picture."""
    index: Bm25

    def search(self, query: str, count: int) -> list[SearchHit]:
        """The best documents by BM25 over title and text. Raises `DataError` for a picture that cannot be used."""
        return [self._hit(number) for number, _ in self.index.top(query, count)]

    def _hit(self, number: int) -> SearchHit:
        hit, image = self.documents[number], self.images[number]
        if image is None:
            return hit
        try:
            picture = load_picture(image, access=ImageAccess(folders=(self.path.parent,)))
        except ImageError as error:
            raise DataError(f"the corpus {self.path}: {error}") from error
        return dataclasses.replace(hit, image=picture.data)


class CorpusProvider:
    """Searches a file. Raises `DataError` for one that cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def search(self, query: str, count: int) -> list[SearchHit]:
        """See `SearchProvider`."""
        return await call_in_thread(lambda: load_corpus(self.path).search(query, count))


_loading = threading.Lock()


def load_corpus(path: Path) -> Corpus:
    """Reads and indexes a file, once while it stays as it is. Raises `DataError` naming the line."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise DataError(f"cannot read the corpus {path}: {error.strerror}") from error
    with _loading:  # many trajectories ask at the same moment
        return _load(path, changed)


@functools.lru_cache(maxsize=4)
def _load(path: Path, _changed: int) -> Corpus:
    rows = tuple(_rows(path))
    if not rows:
        raise DataError(f"the corpus {path} is empty")
    documents, images = zip(*rows, strict=True)
    index = Bm25(f"{document.title}\n{document.text}" for document in documents)
    return Corpus(path=path, documents=documents, images=images, index=index)


def _rows(path: Path) -> Iterator[tuple[SearchHit, str | None]]:
    with path.open(encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _hit(line, f"{path}, line {number}")
        except UnicodeDecodeError as error:
            raise DataError(f"the corpus {path} is not UTF-8 text: {error}") from error


def _hit(line: str, where: str) -> tuple[SearchHit, str | None]:
    document = parse_document(line, where)
    image = json.loads(line).get("image") if '"image"' in line else None
    if image is not None and not isinstance(image, str):
        raise DataError(f"{where}: 'image' is not text: give a path or a data: URL")
    return SearchHit(title=document.title, url=document.id, text=document.text), image
