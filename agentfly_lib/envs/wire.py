"""How an environment and its user talk across processes: one JSON object a line, of bounded length.

    {"op": "make", "kind": ..., "settings": {...}}     {}
    {"op": "reset", "columns": {...}}                  {"observation": ...}
    {"op": "step", "action": ...}                      {"observation": ..., "reward": ..., "done": ..., ...}
    {"op": "close"}                                    {}

Whatever the environment raises is answered by {"failed": "..."}.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from agentfly_lib.envs.environment import StepResult

__all__ = ["MAX_LINE_BYTES", "Nonsense", "dump", "load", "observation_text", "result_of", "told"]

MAX_LINE_BYTES = 64 * 2**20
"""Longest line either side accepts; a screenshot takes a hundredth of it."""


class Nonsense(Exception):
    """What an environment answered is no answer."""


def dump(message: Mapping[str, Any]) -> bytes:
    """One line. Raises `Nonsense` if it is too long, or if a value is not JSON."""
    try:
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise Nonsense(f"it holds a value that is not JSON: {error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise Nonsense(f"it is {len(line)} bytes long, more than {MAX_LINE_BYTES}")
    return line


def load(line: bytes) -> dict[str, Any]:
    """The object of a line. Raises `Nonsense`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Nonsense(f"it is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise Nonsense("it is not a JSON object")
    return message


def observation_text(value: Any) -> str:
    """The observation, which must be text. Raises `Nonsense`."""
    if not isinstance(value, str):
        raise Nonsense(f"an observation is text, and this is a {type(value).__name__}")
    return value


def told(result: Any) -> dict[str, Any]:
    """A step's result as JSON values. Raises `Nonsense` for what is none."""
    if not isinstance(result, StepResult):
        raise Nonsense(f"a step gives a StepResult, and this is a {type(result).__name__}")
    return {
        "observation": observation_text(result.observation),
        "reward": _finite(result.reward),
        "done": bool(result.done),
        "info": dict(result.info),
        "images": [base64.b64encode(image).decode() for image in result.images],
        "error": None if result.error is None else str(result.error),
    }


def result_of(message: Mapping[str, Any]) -> StepResult:
    """The result that `told` made JSON of. Raises `Nonsense`."""
    try:
        return StepResult(
            observation=observation_text(message["observation"]),
            reward=_finite(message["reward"]),
            done=bool(message["done"]),
            info=message.get("info") or {},
            images=tuple(base64.b64decode(image) for image in message.get("images", ())),
            error=message.get("error"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Nonsense(f"it lacks or spoils {error}") from error


def _finite(reward: Any) -> float:
    try:
        number = float(reward)
    except (TypeError, ValueError) as error:
        raise Nonsense(f"a reward is a number, and this is {reward!r}") from error
    if not math.isfinite(number):
        raise Nonsense(f"a reward is a finite number, and this is {number}")
    return number
