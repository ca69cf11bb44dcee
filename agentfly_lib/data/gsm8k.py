"""GSM8K in its published JSONL: `question`, and `answer` whose last line is `#### N`.

The number, without thousands separators, becomes the column `answer`; the working before it becomes `solution`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from agentfly_lib.rows.sources import Row, RowFault, read_rows

__all__ = ["read_gsm8k"]

_FINAL = re.compile(
    r"(?P<solution>.*)^####[ \t]*(?P<answer>-?(?:\d+(?:,\d+)*(?:\.\d+)?|\.\d+))\s*\Z", re.DOTALL | re.MULTILINE
)


def read_gsm8k(path: Path) -> Iterator[Row | RowFault]:
    """Rows with `question`, `answer` and `solution`. Raises `DataError` if the file cannot be read."""
    for row in read_rows(path):
        yield row if isinstance(row, RowFault) else _adapt(row)


def _adapt(row: Row) -> Row | RowFault:
    answer = row.values.get("answer")
    match = _FINAL.match(answer) if isinstance(answer, str) else None
    if match is None:
        return RowFault(where=row.where, message="column 'answer': expected text whose last line is '#### NUMBER'")
    values = {
        **row.values,
        "answer": match["answer"].replace(",", ""),
        "solution": match["solution"].rstrip("\n"),
    }
    return Row(source=row.source, unit=row.unit, number=row.number, values=values)
