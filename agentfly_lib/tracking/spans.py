"""A trajectory as a tree of timed spans: the chain, its turns, the tool calls of each turn.

A trajectory records how long each part took, not when it began, so the spans are laid end to end and end at the moment
of logging. Tools called in the same turn ran side by side and start together. A turn's inputs are the messages that
came since the turn before, so a trace is as long as its conversation. Pictures written as `data:` URLs are marked, not
copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from agentfly_lib.types import Message, Problem, StopReason, Trajectory, Turn
from agentfly_lib.visible import without_data

__all__ = ["Span", "trajectory_row", "trajectory_spans"]

_NANOSECONDS = 1_000_000_000


class Span(TypedDict):
    """One span, as JSON."""

    name: str
    kind: str
    """`AGENT`, `CHAT_MODEL` or `TOOL`."""
    parent: int | None
    """Index of its parent in the list."""
    start_ns: int
    end_ns: int
    inputs: Any
    outputs: Any
    attributes: dict[str, Any]
    error: str | None


def trajectory_spans(trajectory: Trajectory, problem: Problem, *, end_ns: int) -> list[Span]:
    """The spans of `trajectory`, its chain first and every parent before its children. `end_ns` is Unix time."""
    turns = [turn for segment in trajectory.segments for turn in segment.turns]
    start = end_ns - _nanoseconds(sum(turn.seconds for turn in turns))
    chain = Span(
        name="chain",
        kind="AGENT",
        parent=None,
        start_ns=start,
        end_ns=end_ns,
        inputs={"messages": without_data(problem.messages)},
        outputs=without_data(trajectory.final_response),
        attributes=_facts(trajectory) | {"columns": without_data(dict(problem.columns))},
        error=trajectory.failure.message if trajectory.failure is not None else None,
    )
    spans = [chain]
    before, new = 0, list[Message](problem.messages)
    for number, (turn, results) in enumerate(_turns_with_results(turns), start=1):
        generated = start + _nanoseconds(turn.seconds)
        answered = generated + _nanoseconds(sum(result.seconds for result in results))
        parent = len(spans)
        spans.append(
            Span(
                name=f"turn {number}",
                kind="CHAT_MODEL",
                parent=0,
                start_ns=start,
                end_ns=answered,
                inputs={"messages": without_data(new)},
                outputs=without_data(turn.message),
                attributes={
                    "messages_before": before,
                    "tokens": turn.end - turn.start,
                    "finish": turn.finish,
                    "policy_version": turn.policy_version,
                    "generate_seconds": turn.seconds,
                },
                error=None,
            )
        )
        spans += [_tool_span(result, turn, parent, generated, answered) for result in results]
        before, new = before + len(new) + 1, [result.message for result in results]
        start = answered
    return spans


def trajectory_row(trajectory: Trajectory, problem: Problem, *, step: int) -> dict[str, Any]:
    """One row of a readable table."""
    return {
        "step": step,
        **_facts(trajectory),
        "question": _last_question(problem),
        "conversation": "\n".join(
            f"[{message.get('role')}] {without_data(message.get('content'))}" for message in trajectory.messages
        ),
        "final_response": without_data(trajectory.final_response),
        "failure": trajectory.failure.message if trajectory.failure is not None else None,
    }


def _facts(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trajectory": trajectory.id,
        "problem": trajectory.problem_id,
        "reward": trajectory.reward,
        "stop": StopReason(trajectory.stop).value,
        "turns": trajectory.num_turns,
        "sampled_tokens": trajectory.num_sampled,
        "policy_version": trajectory.policy_version,
        **{f"reward_part/{name}": value for name, value in trajectory.reward_parts.items()},
    }


def _turns_with_results(turns: Sequence[Turn]) -> Iterator[tuple[Turn, list[Turn]]]:
    """Every sampled turn with what came back to it. What stands before the first sampled turn is the prompt's."""
    sampled: Turn | None = None
    results: list[Turn] = []
    for turn in turns:
        if turn.sampled:
            if sampled is not None:
                yield sampled, results
            sampled, results = turn, []
        elif sampled is not None:
            results.append(turn)
    if sampled is not None:
        yield sampled, results


def _tool_span(result: Turn, turn: Turn, parent: int, start_ns: int, end_ns: int) -> Span:
    call_id = result.message.get("tool_call_id")
    return Span(
        name=str(result.message.get("name") or result.message.get("role") or "tool"),
        kind="TOOL",
        parent=parent,
        start_ns=start_ns,
        end_ns=end_ns,
        inputs=without_data(_call(turn.message, call_id)),
        outputs=without_data(result.message.get("content")),
        attributes={"tool_call_id": call_id},
        error=None,
    )


def _call(reply: Message, call_id: object) -> Any:
    """The call that has this id, or the whole reply if its calls are only in its text."""
    for call in reply.get("tool_calls") or ():
        if call.get("id") == call_id:
            return call.get("function", call)
    return reply.get("content")


def _last_question(problem: Problem) -> str:
    questions = [message.get("content") for message in problem.messages if message.get("role") == "user"]
    return str(without_data(questions[-1])) if questions else ""


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
