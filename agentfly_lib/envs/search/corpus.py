"""A corpus on disk: JSONL, read where it lies. In memory is only where each row begins."""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from agentfly_lib.errors import DataError

__all__ = ["Document", "FileCorpus", "parse_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A row of a corpus."""

    id: str
    title: str
    text: str

    @property
    def indexed_text(self) -> str:
        """What is searched."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def parse_document(line: str | bytes, where: str) -> Document:
    """A row: `text` (or `contents`), and `title` and `id` (or `url`) if there are any. Raises `DataError`."""
    try:
        row: Any = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: this is not UTF-8 text: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: this is not JSON: {error}") from error
    text = row.get("text", row.get("contents")) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{where}: a row needs a text under 'text' or 'contents'")
    return Document(id=str(row.get("url") or row.get("id") or ""), title=str(row.get("title") or ""), text=text)


class FileCorpus(Sequence[Document]):
    """The rows of a file. Raises `DataError` for a file that cannot be read or is empty, and for a bad row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"cannot read the corpus {path}: {error.strerror}") from error
        except ValueError as error:
            raise DataError(f"the corpus {path} is empty") from error
        lines, starts, begin = [], [], 0
        for number, line in enumerate(iter(self._bytes.readline, b""), start=1):
            if line.strip():
                starts.append(begin)
                lines.append(number)
            begin += len(line)
        if not starts:
            raise DataError(f"the corpus {path} is empty")
        self._starts, self._lines = np.array([*starts, begin]), np.array(lines)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, number: int) -> Document: ...
    @overload
    def __getitem__(self, number: slice) -> list[Document]: ...
    def __getitem__(self, number: int | slice) -> Document | list[Document]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        line = self._bytes[int(self._starts[number]) : int(self._starts[number + 1])]
        return parse_document(line, f"{self._path}, line {self._lines[number]}")
