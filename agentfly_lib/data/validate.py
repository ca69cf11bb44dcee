"""From rows to problems, or to an error that names every bad row (up to a limit), before anything expensive happens.

A row has a conversation (`messages`) or a `question`, which becomes one user message; all its other columns are free:
tools and rewards get them by name. The names in `RESERVED_COLUMNS` are the rollout's own. Pictures (`data.images`) are
loaded here, so that one that cannot be used is a bad row like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentfly_lib.chat.images import NO_ACCESS, ImageAccess
from agentfly_lib.data.images import held_images, held_parts
from agentfly_lib.data.problems import content_id
from agentfly_lib.errors import DataError, ImageError
from agentfly_lib.rows.sources import Row, RowFault
from agentfly_lib.types import RESERVED_COLUMNS, Message, Problem

__all__ = ["RESERVED_COLUMNS", "RowFormat", "SourcedProblem", "build_problems"]

_ROLES = ("system", "user", "assistant", "tool")
_ID_COLUMN = "id"
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 100
"""Of lists and objects inside each other; far below what Python's own recursion allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """Which columns hold the conversation, and what their pictures may name."""

    question_column: str = "question"
    messages_column: str = "messages"
    images: ImageAccess = NO_ACCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedProblem:
    """A problem and the place it came from."""

    problem: Problem
    where: str


class _BadRow(Exception):
    """What is wrong with the row at hand."""


def build_problems(
    rows: Iterable[Row | RowFault], row_format: RowFormat, *, source: str, max_errors: int = 5
) -> list[SourcedProblem]:
    """Checks every row and makes problems of them.

    Raises `DataError` naming file and row of the first `max_errors` faults and the number of all, or saying that
    `source` has no rows.
    """
    faults: list[RowFault] = []
    problems: list[SourcedProblem] = []
    rows_of_ids: dict[str, str] = {}
    for row in rows:
        if isinstance(row, RowFault):
            faults.append(row)
            continue
        try:
            problem = _build(row, row_format)
            if _has_own_id(row):
                other = rows_of_ids.setdefault(problem.id, row.where)
                if other != row.where:
                    raise _BadRow(f"the id {problem.id!r} stands at {other} already; ids must be unique")
        except _BadRow as fault:
            faults.append(RowFault(where=row.where, message=str(fault)))
            continue
        problems.append(SourcedProblem(problem=problem, where=row.where))
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults[:max_errors])
        more = f"\n  ... and {len(faults) - max_errors} more" if len(faults) > max_errors else ""
        raise DataError(f"{source}: {len(faults)} of {len(faults) + len(problems)} rows cannot be used\n{listed}{more}")
    if not problems:
        raise DataError(f"{source} has no rows; a split needs at least one")
    return problems


def _build(row: Row, row_format: RowFormat) -> Problem:
    values = row.values
    _check_depth(values)
    if values.get(row_format.messages_column) is not None:
        conversation = row_format.messages_column
        messages = _messages(values[conversation], conversation)
    elif row_format.question_column in values:
        conversation = row_format.question_column
        messages = (_question(values[conversation], conversation),)
    else:
        found = ", ".join(map(repr, values)) or "no columns"
        raise _BadRow(
            f"expected the column {row_format.question_column!r} (text) or {row_format.messages_column!r} "
            f"(a conversation), found {found}; name yours with data.question_column or data.messages_column"
        )
    # An empty messages column beside a question is the other format's placeholder, not a free column.
    used = {conversation, row_format.messages_column}
    columns = {name: value for name, value in values.items() if name not in used}
    try:
        messages = tuple(_with_images(message, row_format.images) for message in messages)
        columns = held_images(columns, row_format.images)
    except ImageError as error:
        raise _BadRow(str(error)) from error
    reserved = sorted(RESERVED_COLUMNS & columns.keys())
    if reserved:
        raise _BadRow(
            f"the column {reserved[0]!r} has a name that the rollout itself gives to tools and rewards; rename it "
            f"(reserved: {', '.join(sorted(RESERVED_COLUMNS))})"
        )
    identity = _own_id(values[_ID_COLUMN]) if _has_own_id(row) else content_id(messages, columns)
    return Problem(id=identity, messages=messages, columns=columns)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        containers = [each for each in level if isinstance(each, dict | list)]
        if not containers:
            return
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    raise _BadRow(f"lists and objects are nested more than {_MAX_DEPTH} deep")


def _has_own_id(row: Row) -> bool:
    return row.values.get(_ID_COLUMN) not in (None, "")


def _own_id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _BadRow(f"column {_ID_COLUMN!r}: expected text or a whole number, got {_short(value)}")
    text = str(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _BadRow(f"column {_ID_COLUMN!r}: {_short(value)} is not valid Unicode text") from None
    return text


def _question(value: Any, column: str) -> Message:
    if not isinstance(value, str):
        raise _BadRow(f"column {column!r}: expected text, got {_short(value)}")
    if not value.strip():
        raise _BadRow(f"column {column!r}: expected text, it is empty")
    if _HALF_PAIR.search(value):
        raise _BadRow(f"column {column!r}: holds half of a surrogate pair, which is no character and cannot be encoded")
    return {"role": "user", "content": value}


def _messages(value: Any, column: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        # CSV has no lists: a conversation stands there as JSON text.
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _BadRow(f"column {column!r}: expected a list of messages, got text that is not JSON") from None
        _check_depth(value)
    if not isinstance(value, list) or not value:
        raise _BadRow(f"column {column!r}: expected a list of messages that is not empty, got {_short(value)}")
    messages = tuple(_message(message, f"{column}[{index}]") for index, message in enumerate(value))
    roles = [message["role"] for message in messages]
    if "system" in roles[1:]:
        raise _BadRow(f"column {column!r}: a system message may only stand first, the roles are {', '.join(roles)}")
    if "user" not in roles:
        raise _BadRow(f"column {column!r}: expected at least one user message, the roles are {', '.join(roles)}")
    if roles[-1] not in ("user", "tool"):
        raise _BadRow(f"column {column!r}: the last message must be for the agent to answer, its role is {roles[-1]!r}")
    return messages


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, dict):
        raise _BadRow(f"{place}: expected an object with role and content, got {_short(value)}")
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise _BadRow(f"{place}.role: expected one of {', '.join(_ROLES)}, got {_short(role)}")
    if isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise _BadRow(f"{place}.content[{index}]: expected an object with a type, got {_short(part)}")
    elif not isinstance(content, str) and not (content is None and role == "assistant" and value.get("tool_calls")):
        raise _BadRow(f"{place}.content: expected text or a list of parts, got {_short(content)}")
    if role == "user" and not content:
        raise _BadRow(f"{place}.content: expected text, it is empty")
    if _HALF_PAIR.search(json.dumps(value, ensure_ascii=False, default=str)):
        raise _BadRow(f"{place}: holds half of a surrogate pair, which is no character and cannot be encoded")
    return value


def _with_images(message: Message, access: ImageAccess) -> Message:
    content = message.get("content")
    return {**message, "content": held_parts(content, access)} if isinstance(content, list) else message


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
