"""What users hand to `run`, as problems: one conversation or many, bare or with columns for tools and rewards.

Pictures in messages may be anything that `chat.load_picture` takes; a problem holds them as `data:` URLs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from agentfly_lib.chat.images import NO_ACCESS
from agentfly_lib.data.images import held_parts
from agentfly_lib.data.problems import content_id
from agentfly_lib.errors import DataError, ImageError
from agentfly_lib.types import RESERVED_COLUMNS, Message, Problem

__all__ = ["to_problems"]

_ROLES = ("system", "user", "assistant", "tool")


def to_problems(value: Any) -> list[Problem]:
    """Reads a question, a conversation, a row with `messages` or `question` and free columns, or a list of these.

    Arrays, generators and `datasets.Dataset`s are lists too. Raises `DataError` that names the input by its number.
    """
    value = _listed(value)
    if isinstance(value, str | Mapping | Problem) or _is_conversation(value):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray) or not value:
        raise DataError(
            f"messages is {_named(value)}: give a conversation (a list of messages with role and content), a row with "
            "'messages' or 'question', or a list of these"
        )
    return [_problem(item, f"input {index}") for index, item in enumerate(value)]


def _problem(item: Any, where: str) -> Problem:
    item = _listed(item)
    if isinstance(item, Problem):
        return item
    if isinstance(item, str):
        return _row({"question": item}, where)
    if _is_conversation(item):
        return _row({"messages": item}, where)
    if isinstance(item, Mapping):
        return _row(item, where)
    raise DataError(f"{where} is {_named(item)}, expected a conversation, a row or a question")


def _row(row: Mapping[str, Any], where: str) -> Problem:
    columns = {str(key): value for key, value in row.items() if key != "messages"}
    if "messages" in row:
        messages = _checked(row["messages"], where)
    elif isinstance(question := columns.pop("question", None), str) and question.strip():
        messages = ({"role": "user", "content": question},)
    else:
        raise DataError(f"{where} has neither 'messages' nor a 'question' (its keys: {', '.join(map(str, row))})")
    try:
        json.dumps(messages, ensure_ascii=False, default=repr).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} holds half of a surrogate pair, which is not a character; remove it") from error
    identity = columns.pop("id", None)
    for name in sorted(columns.keys() & RESERVED_COLUMNS):
        raise DataError(f"{where}: the column {name!r} has a name that is reserved for the rollout; rename it")
    return Problem(id=str(identity or content_id(messages, _plain(columns))), messages=messages, columns=columns)


def _checked(messages: Any, where: str) -> tuple[Message, ...]:
    messages = _listed(messages)
    if not _is_conversation(messages):
        raise DataError(f"{where}: messages is {_named(messages)}, expected a list of messages with role and content")
    for index, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            raise DataError(f"{where}: message {index} has the role {message.get('role')!r}, expected one of {_ROLES}")
        if not isinstance(message.get("content"), str | list) and not _calls_only(message):
            raise DataError(f"{where}: message {index} has no text in 'content'")
    if messages[-1]["role"] == "assistant":
        raise DataError(f"{where}: the last message is the assistant's, so there is nothing to answer")
    try:
        return tuple(_with_images(message) for message in messages)
    except ImageError as error:
        raise DataError(f"{where}: {error}") from error


def _with_images(message: Mapping[str, Any]) -> Message:
    content = message.get("content")
    held = {"content": held_parts(content, NO_ACCESS)} if isinstance(content, list) else {}
    return {**message, **held}


def _calls_only(message: Message) -> bool:
    """An earlier reply that said nothing beside its calls."""
    return message["role"] == "assistant" and message.get("content") is None and bool(message.get("tool_calls"))


def _listed(value: Any) -> Any:
    """What is as good as a list, as a list; anything else as it is."""
    if isinstance(value, str | Mapping | Sequence):
        return value
    if hasattr(value, "tolist"):  # an array or a series
        return value.tolist()
    if isinstance(value, Iterator) or hasattr(value, "features"):  # the latter: a `datasets.Dataset`, row by row
        return list(value)
    return value


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def _plain(columns: Mapping[str, Any]) -> dict[str, str]:
    """Columns may hold anything here; an id needs only something that differs when they differ."""
    return {name: repr(value) for name, value in columns.items()}


def _named(value: Any) -> str:
    empty = isinstance(value, Sized) and len(value) == 0
    return f"an empty {type(value).__name__}" if empty else f"of type {type(value).__name__}"
