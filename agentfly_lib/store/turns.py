"""Messages, turns, problems and failures as JSON text, so that a shard's schema never depends on what they hold.

Text is escaped to ASCII: a model or a tool may produce half of a surrogate pair, which JSON carries and UTF-8 does not.
A problem's pictures that a shard holds anyway (as `data:` URLs of these files) are named in its text, not repeated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentfly_lib.types import Failure, FailureKind, FinishReason, Problem, Turn

__all__ = [
    "dump_failure",
    "dump_json",
    "dump_problem",
    "dump_turns",
    "load_failure",
    "load_problem",
    "load_turns",
]


def dump_json(value: Any, what: str) -> str:
    """Compact ASCII JSON. Raises `TypeError` naming `what` if a value is not JSON (a numpy scalar, an image, ...)."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} holds a value that JSON cannot carry: {error}") from error


def dump_turns(segments: Sequence[Sequence[Turn]], what: str) -> str:
    """The turns of every segment of one trajectory."""
    return dump_json([[_turn_to_json(turn) for turn in turns] for turns in segments], what)


def load_turns(text: str) -> list[tuple[Turn, ...]]:
    """Inverse of `dump_turns`."""
    return [tuple(_turn_from_json(turn) for turn in turns) for turns in json.loads(text)]


def dump_problem(problem: Problem, pictures: Mapping[str, bytes] | None = None) -> str:
    """A whole problem, free columns included, but for the files of `pictures` (SHA-256 -> file)."""
    value = {"messages": list(problem.messages), "columns": dict(problem.columns)}
    named: list[_Named] = []
    if pictures:
        value = _without_pictures(value, pictures, (), named)
    value = {"id": problem.id, **value, **({"pictures": named} if named else {})}
    return dump_json(value, f"problem {problem.id}")


def load_problem(text: str, pictures: Mapping[str, bytes] | None = None) -> Problem:
    """Inverse of `dump_problem`. Without `pictures`, those that are only named are empty texts."""
    value = json.loads(text)
    if pictures is not None:
        for path, digest, head in value.get("pictures", ()):
            *way, last = path
            place: Any = value
            for step in way:
                place = place[step]
            place[last] = _data_url(head, pictures[digest])
    return Problem(id=value["id"], messages=tuple(value["messages"]), columns=value["columns"])


def dump_failure(failure: Failure | None) -> str | None:
    """A failure, or None."""
    if failure is None:
        return None
    value = {"kind": failure.kind, "message": failure.message, "where": failure.where, "attempts": failure.attempts}
    return dump_json(value, "a failure")


def load_failure(text: str | None) -> Failure | None:
    """Inverse of `dump_failure`."""
    if text is None:
        return None
    value = json.loads(text)
    return Failure(
        kind=FailureKind(value["kind"]), message=value["message"], where=value["where"], attempts=value["attempts"]
    )


_Named = tuple[tuple[str | int, ...], str, str]
"""Where a picture stood, its SHA-256, and what stood before its base64."""


def _without_pictures(
    value: Any, pictures: Mapping[str, bytes], path: tuple[str | int, ...], named: list[_Named]
) -> Any:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _without_pictures(each, pictures, (*path, key), named) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_pictures(each, pictures, (*path, index), named) for index, each in enumerate(value)]
    if not isinstance(value, str) or not value.startswith("data:image/"):
        return value
    head, _, body = value.partition(",")
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return value
    digest = hashlib.sha256(data).hexdigest()
    if digest not in pictures or _data_url(head, data) != value:
        return value
    named.append((path, digest, head))
    return ""


def _data_url(head: str, data: bytes) -> str:
    return f"{head},{base64.b64encode(data).decode()}"


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    return {
        "message": turn.message,
        "start": turn.start,
        "end": turn.end,
        "sampled": turn.sampled,
        "finish": turn.finish,
        "policy_version": turn.policy_version,
        "seconds": turn.seconds,
        "reward": turn.reward,
        "answer": turn.answer,
    }


def _turn_from_json(value: dict[str, Any]) -> Turn:
    return Turn(
        message=value["message"],
        start=value["start"],
        end=value["end"],
        sampled=value["sampled"],
        finish=None if value["finish"] is None else FinishReason(value["finish"]),
        policy_version=value["policy_version"],
        seconds=value["seconds"],
        reward=value.get("reward"),  # shards of earlier releases have neither
        answer=value.get("answer"),
    )
