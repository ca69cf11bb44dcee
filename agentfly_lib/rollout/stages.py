"""Where in a chain something broke, and whether it may go better a second time."""

from __future__ import annotations

from enum import StrEnum

from agentfly_lib.types import Failure, FailureKind

__all__ = ["Stage", "is_transient"]


class Stage(StrEnum):
    """What a chain is doing; `Failure.where` of whatever does not name a place of its own."""

    PROMPT = "prompt"
    """Rendering the first prompt."""
    REQUEST = "request"
    """Asking the engine for something that it cannot serve."""
    GENERATE = "generate"
    """Waiting for the engine."""
    REPLY = "reply"
    """Decoding, recording and parsing what it sampled."""
    RESOURCES = "resources"
    """Waiting for what a call needs."""
    TOOLS = "tools"
    """Running the calls of a turn."""
    BRIDGE = "bridge"
    """Rendering their results."""


_DETERMINED = frozenset({Stage.PROMPT, Stage.REQUEST, Stage.REPLY, Stage.BRIDGE})


def is_transient(failure: Failure) -> bool:
    """An engine, a network or a machine failed, so the chain may be tried again.

    What is computed from the problem and the same sampled tokens alone would fail in the same way again.
    """
    return failure.kind is FailureKind.INFRASTRUCTURE and failure.where not in _DETERMINED
