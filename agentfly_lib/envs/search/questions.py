"""Questions: from JSONL files, or about the generated corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from agentfly_lib.envs.search.generated import generate_questions
from agentfly_lib.envs.search.settings import SearchSettings
from agentfly_lib.errors import DataError

__all__ = ["problems"]

_EVAL_SHARE = 8
"""One generated question in so many is held out."""


def problems(settings: SearchSettings, split: Literal["train", "eval"]) -> Iterator[Mapping[str, Any]]:
    """Rows with `id`, `question`, `answer` (a list) and what else a row has. Raises `DataError` naming the line."""
    path = settings.train if split == "train" else settings.eval
    if path is not None:
        yield from _file(path)
        return
    for number, row in enumerate(generate_questions(settings.index.generated)):
        if (number % _EVAL_SHARE == 0) == (split == "eval"):
            yield row


def _file(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _row(line, path.stem, number, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the questions {path}: {error}") from error


def _row(line: str, stem: str, number: int, where: str) -> Mapping[str, Any]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: this is not JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("question"), str):
        raise DataError(f"{where}: a row needs a text under 'question'")
    answers = row.pop("golden_answers", None)
    answers = row.get("answer", answers) if answers is None else answers
    answers = answers if isinstance(answers, list) else [answers]
    if not answers or not all(isinstance(answer, str | int | float) for answer in answers):
        raise DataError(f"{where}: a row needs 'answer' (or 'golden_answers'): a text, or a list of texts")
    return {"id": f"{stem}-{number}"} | row | {"answer": [str(answer) for answer in answers]}
