"""Messages, turns, problems and failures as JSON text, so that a shard's schema never depends on what they hold.

`orjson` writes what it carries without loss, and ends its text with a newline; Python's `json` writes everything else:
half of a surrogate pair (escaped to ASCII), an integer beyond 64 bits, NaN. A text without the newline is read by
`json` alone, because `orjson` would make a float of such an integer.

A problem's pictures that a shard holds anyway (as `data:` URLs of these files) are named in its text, not repeated.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentfly_lib.types import Failure, FailureKind, FinishReason, Problem, Turn

__all__ = [
    "dump_failure",
    "dump_json",
    "dump_problem",
    "dump_turns",
    "load_failure",
    "load_json",
    "load_problem",
    "load_turns",
]

_OPTIONS = (
    orjson.OPT_APPEND_NEWLINE
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_SCALARS = frozenset({bool, int, str, type(None)})
_NESTING = 100
"""Levels that `orjson` is trusted with; its own limit is 254."""
_FIELDS = tuple((field.name, getattr(Turn, field.name).__set__) for field in dataclasses.fields(Turn))
_NOT_IN_EARLIER_RELEASES: Mapping[str, Any] = {"reward": None, "answer": None}
_FINISHES: Mapping[str | None, FinishReason | None] = {None: None, **{reason.value: reason for reason in FinishReason}}


def dump_json(value: Any, what: str) -> bytes:
    """Compact JSON. Raises `TypeError` naming `what` if a value is not JSON (a numpy scalar, an image, ...)."""
    return _dump(value, what, exact=_is_plain(value))


def load_json(text: str | bytes) -> Any:
    """Inverse of `dump_json`."""
    return orjson.loads(text) if text[-1:] in ("\n", b"\n") else json.loads(text)


def dump_turns(segments: Sequence[Sequence[Turn]], what: str) -> bytes:
    """The turns of every segment of one trajectory."""
    value = [[_turn_to_json(turn) for turn in turns] for turns in segments]
    # Only what is free, or may be NaN: a look at every field takes longer than writing all of them.
    made = [turn for turns in segments for turn in turns]
    exact = (
        _is_plain([turn.message for turn in made])
        and _is_plain([each for turn in made for each in (turn.reward, turn.answer)])
        and all(map(math.isfinite, [turn.seconds for turn in made]))
    )
    return _dump(value, what, exact=exact)


def load_turns(text: str | bytes) -> list[tuple[Turn, ...]]:
    """Inverse of `dump_turns`."""
    return [tuple(_turn_from_json(turn) for turn in turns) for turns in load_json(text)]


def _dump(value: Any, what: str, *, exact: bool) -> bytes:
    if exact:
        try:
            # A copy: orjson's own result keeps a buffer of many times its length.
            return bytes(memoryview(orjson.dumps(value, option=_OPTIONS)))
        except orjson.JSONEncodeError:  # `json` may carry it still
            pass
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} holds a value that JSON cannot carry: {error}") from error


def _is_plain(value: Any, levels: int = _NESTING) -> bool:
    """Whether `orjson` carries a value as it is, or refuses it.

    It writes NaN as null, and an enumeration or a UUID as what stands for it, where `json` refuses them.
    """
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        values = value.values()
    elif kind is list or kind is tuple:
        values = value
    else:
        return False
    # Most values are text: a loop in C over their types is all that they cost.
    if _SCALARS.issuperset(map(type, values)):
        return True
    return levels > 0 and all(_is_plain(each, levels - 1) for each in values)


def dump_problem(problem: Problem, pictures: Mapping[str, bytes] | None = None) -> bytes:
    """A whole problem, free columns included, but for the files of `pictures` (SHA-256 -> file)."""
    value = {"messages": list(problem.messages), "columns": dict(problem.columns)}
    named: list[_Named] = []
    if pictures:
        value = _without_pictures(value, pictures, (), named)
    value = {"id": problem.id, **value, **({"pictures": named} if named else {})}
    return dump_json(value, f"problem {problem.id}")


def load_problem(text: str | bytes, pictures: Mapping[str, bytes] | None = None) -> Problem:
    """Inverse of `dump_problem`. Without `pictures`, those that are only named are empty texts."""
    value = load_json(text)
    if pictures is not None:
        for path, digest, head in value.get("pictures", ()):
            *way, last = path
            place: Any = value
            for step in way:
                place = place[step]
            place[last] = _data_url(head, pictures[digest])
    return Problem(id=value["id"], messages=tuple(value["messages"]), columns=value["columns"])


def dump_failure(failure: Failure | None) -> bytes | None:
    """A failure, or None."""
    if failure is None:
        return None
    value = {
        "kind": failure.kind.value,
        "message": failure.message,
        "where": failure.where,
        "attempts": failure.attempts,
    }
    return dump_json(value, "a failure")


def load_failure(text: str | bytes | None) -> Failure | None:
    """Inverse of `dump_failure`."""
    if text is None:
        return None
    value = load_json(text)
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
    if len(value) < len(_FIELDS):
        value = {**_NOT_IN_EARLIER_RELEASES, **value}
    value["finish"] = _FINISHES[value["finish"]]
    # The constructor of a frozen dataclass, which checks nothing here, takes four times as long.
    turn = object.__new__(Turn)
    for name, put in _FIELDS:
        put(turn, value[name])
    return turn
