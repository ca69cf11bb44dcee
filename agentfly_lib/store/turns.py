"""Messages, turns, problems and failures as JSON text, so that a shard's schema never depends on what they hold.

Text is escaped to ASCII: a model or a tool may produce half of a surrogate pair, which JSON carries and UTF-8 does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def dump_problem(problem: Problem) -> str:
    """A whole problem, free columns included."""
    value = {"id": problem.id, "messages": list(problem.messages), "columns": dict(problem.columns)}
    return dump_json(value, f"problem {problem.id}")


def load_problem(text: str) -> Problem:
    """Inverse of `dump_problem`."""
    value = json.loads(text)
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
