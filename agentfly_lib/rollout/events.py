"""What a chain tells while it runs, for whoever wants to watch: typed events, each opened one closed.

    TrajectoryStarted
        TurnStarted, TextDelta ..., ToolCallStarted ..., ToolCallEnded ..., TurnEnded
        TurnStarted, ...
        ErrorRaised                (only if something broke)
    TrajectoryEnded

Calls that were opened are closed before their turn, turns before their trajectory, on failure and cancellation too. The
text of a turn's deltas joined is the content of what was said: calls come as events of their own, never as the markup
that the model wrote, unless an agent writes its calls in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from agentfly_lib.chat import MalformedCall, StreamParser, ToolCall
from agentfly_lib.tools import ToolResult
from agentfly_lib.types import Failure, FinishReason, Trajectory

__all__ = [
    "ChainEvent",
    "ChainEvents",
    "ErrorRaised",
    "TextDelta",
    "ToolCallEnded",
    "ToolCallStarted",
    "TrajectoryEnded",
    "TrajectoryStarted",
    "TurnEnded",
    "TurnStarted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryStarted:
    """A chain begins."""

    type: ClassVar[str] = "trajectory_started"
    trajectory_id: str
    problem_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """The policy is asked."""

    type: ClassVar[str] = "turn_started"
    trajectory_id: str
    turn: int
    """Counts from 0."""
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of what the policy says, without the markup of calls; one for the turn if the engine cannot stream."""

    type: ClassVar[str] = "text_delta"
    trajectory_id: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStarted:
    """A call is about to be run, or, if it is malformed, refused."""

    type: ClassVar[str] = "tool_call_started"
    trajectory_id: str
    turn: int
    call: ToolCall | MalformedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallEnded:
    """What a call gave. The calls of one turn end together."""

    type: ClassVar[str] = "tool_call_ended"
    trajectory_id: str
    turn: int
    call: ToolCall | MalformedCall
    result: ToolResult | None
    """None if the chain was broken off before there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """The policy has spoken, and its calls have been answered."""

    type: ClassVar[str] = "turn_ended"
    trajectory_id: str
    turn: int
    text: str
    """What was sampled, whole, markup included; or what had come of it when the turn was broken off."""
    finish: FinishReason | None
    """None if the turn was broken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEnded:
    """A chain is over."""

    type: ClassVar[str] = "trajectory_ended"
    trajectory_id: str
    trajectory: Trajectory | None
    """Not scored yet; None if the chain was cancelled or its engine is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRaised:
    """Something broke."""

    type: ClassVar[str] = "error"
    trajectory_id: str | None
    """The chain that it ended; None if it ended all of them."""
    message: str
    failure: Failure | None = None
    """As the trajectory records it, if it does."""


ChainEvent = (
    TrajectoryStarted
    | TurnStarted
    | TextDelta
    | ToolCallStarted
    | ToolCallEnded
    | TurnEnded
    | TrajectoryEnded
    | ErrorRaised
)


class ChainEvents:
    """Tells one chain's events, and closes what is open however the chain ends."""

    def __init__(
        self,
        tell: Callable[[ChainEvent], None] | None,
        trajectory_id: str,
        stream_parser: Callable[[], StreamParser | None] = lambda: None,
    ) -> None:
        """`tell` is called in the event loop and must not raise; None if nobody listens. `stream_parser`: see
        `ChainAgent`."""
        self.listening = tell is not None
        self._tell = tell or _nobody
        self._id = trajectory_id
        self._turn = -1
        self._stream_parser = stream_parser
        self._parser: StreamParser | None = None
        self._text: list[str] = []
        self._finish: FinishReason | None = None
        self._trajectory: Trajectory | None = None

    @contextmanager
    def trajectory(self, problem_id: str) -> Iterator[None]:
        """The chain runs inside this block."""
        self._tell(TrajectoryStarted(trajectory_id=self._id, problem_id=problem_id))
        try:
            yield
        finally:
            self._tell(TrajectoryEnded(trajectory_id=self._id, trajectory=self._trajectory))

    @contextmanager
    def turn(self, prompt_tokens: int) -> Iterator[None]:
        """The next turn happens inside this block."""
        self._turn += 1
        self._text, self._finish = [], None
        self._parser = self._stream_parser() if self.listening else None
        self._tell(TurnStarted(trajectory_id=self._id, turn=self._turn, prompt_tokens=prompt_tokens))
        try:
            yield
        finally:
            self._tell(
                TurnEnded(trajectory_id=self._id, turn=self._turn, text="".join(self._text), finish=self._finish)
            )

    def delta(self, text: str) -> None:
        """More of the turn's text."""
        self._text.append(text)
        self._show(text if self._parser is None else self._parser.push(text))

    def said(self, reply: str, finish: FinishReason) -> None:
        """The turn's whole text; what was not told as deltas is told now."""
        self.delta(reply[sum(map(len, self._text)) :])
        if self._parser is not None:
            self._show(self._parser.finish()[0])
        self._finish = finish

    def _show(self, content: str) -> None:
        if content:
            self._tell(TextDelta(trajectory_id=self._id, turn=self._turn, text=content))

    @contextmanager
    def calls(self, calls: Sequence[ToolCall | MalformedCall]) -> Iterator[list[ToolResult]]:
        """The turn's calls are run inside this block, which puts their results into the list."""
        for call in calls:
            self._tell(ToolCallStarted(trajectory_id=self._id, turn=self._turn, call=call))
        results: list[ToolResult] = []
        try:
            yield results
        finally:
            for index, call in enumerate(calls):
                result = results[index] if index < len(results) else None
                self._tell(ToolCallEnded(trajectory_id=self._id, turn=self._turn, call=call, result=result))

    def error(self, message: str, failure: Failure | None = None) -> None:
        """Something broke the chain."""
        self._tell(ErrorRaised(trajectory_id=self._id, message=message, failure=failure))

    def ended(self, trajectory: Trajectory) -> None:
        """What the chain came to; told when its block ends."""
        self._trajectory = trajectory


def _nobody(event: ChainEvent) -> None:
    """Listens to nothing."""
