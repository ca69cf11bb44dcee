"""A trajectory as a tree of spans, with times worked out by hand."""

from __future__ import annotations

import dataclasses
import json

from agentfly_lib.tracking.spans import trajectory_row, trajectory_spans
from agentfly_lib.types import Failure, FailureKind, Problem, StopReason, Trajectory

SECOND = 1_000_000_000
END = 1_000 * SECOND


def test_the_tree_is_chain_turn_tool(trajectory: Trajectory, problem: Problem):
    spans = trajectory_spans(trajectory, problem, end_ns=END)

    assert [(span["name"], span["kind"], span["parent"]) for span in spans] == [
        ("chain", "AGENT", None),
        ("turn 1", "CHAT_MODEL", 0),
        ("calculator", "TOOL", 1),
        ("clock", "TOOL", 1),
        ("turn 2", "CHAT_MODEL", 0),
    ]


def test_times_are_laid_end_to_end_and_parallel_tools_start_together(trajectory: Trajectory, problem: Problem):
    spans = trajectory_spans(trajectory, problem, end_ns=END)

    seconds = [((span["start_ns"] - END) / SECOND, (span["end_ns"] - END) / SECOND) for span in spans]
    assert seconds == [(-1.75, 0.0), (-1.75, -0.25), (-0.75, -0.25), (-0.75, -0.25), (-0.25, 0.0)]


def test_spans_say_what_went_in_and_what_came_out(trajectory: Trajectory, problem: Problem):
    chain, first, calculator, _, second = trajectory_spans(trajectory, problem, end_ns=END)

    assert chain["inputs"] == {"messages": [{"role": "user", "content": "What is 7 times 5?"}]}
    assert chain["outputs"] == "The answer is \\boxed{35}"
    assert chain["attributes"]["reward"] == 1.0
    assert first["attributes"]["tokens"] == 4
    assert calculator["outputs"] == "35"
    assert [message["role"] for message in second["inputs"]["messages"]] == ["tool", "tool"]
    assert [turn["attributes"]["messages_before"] for turn in (first, second)] == [0, 2]


def test_a_call_with_structure_is_shown_alone(trajectory: Trajectory, problem: Problem):
    segment = trajectory.segments[0]
    call = {"id": "call-clock", "type": "function", "function": {"name": "clock", "arguments": {}}}
    first = dataclasses.replace(segment.turns[0], message={**segment.turns[0].message, "tool_calls": [call]})
    changed = dataclasses.replace(segment, turns=(first, *segment.turns[1:]))

    spans = trajectory_spans(dataclasses.replace(trajectory, segments=(changed,)), problem, end_ns=END)

    assert spans[3]["inputs"] == {"name": "clock", "arguments": {}}


def test_a_trajectory_that_failed_before_it_sampled_is_one_span_with_its_error(problem: Problem):
    failed = Trajectory(
        id="0-0/1",
        problem_id="p1",
        group_id="0-0",
        chain=1,
        segments=(),
        stop=StopReason.FAILED,
        failure=Failure(kind=FailureKind.INFRASTRUCTURE, message="engine died", where="generate"),
    )

    (chain,) = trajectory_spans(failed, problem, end_ns=END)

    assert chain["error"] == "engine died"
    assert chain["start_ns"] == chain["end_ns"] == END


def test_a_row_is_readable_and_is_json(trajectory: Trajectory, problem: Problem):
    row = trajectory_row(trajectory, problem, step=7)

    assert row["step"] == 7
    assert row["question"] == "What is 7 times 5?"
    assert row["reward_part/format"] == 0.5
    assert row["conversation"].splitlines()[1:] == ["[tool] 35", "[tool] noon", "[assistant] The answer is \\boxed{35}"]
    assert json.loads(json.dumps(row)) == row


def test_pictures_written_as_addresses_are_marked_and_not_copied(trajectory: Trajectory, problem: Problem):
    url = "data:image/png;base64," + "iVBORw0KGgo" * 20
    part = {"type": "image_url", "image_url": {"url": url}}
    asked = dataclasses.replace(
        problem, messages=({"role": "user", "content": [{"type": "text", "text": f"this: {url}"}, part]},)
    )
    segment = trajectory.segments[0]
    turns = tuple(
        dataclasses.replace(turn, message=turn.message | {"content": f"{turn.message.get('content')} {url}"})
        for turn in segment.turns
    )
    seen = dataclasses.replace(trajectory, segments=(dataclasses.replace(segment, turns=turns),))
    spans = trajectory_spans(seen, asked, end_ns=END)
    assert "iVBORw0KGgo" not in json.dumps(spans)
    mark = "[image/png, 242 characters]"
    (chain, *_) = spans
    assert chain["inputs"]["messages"][0]["content"] == [
        {"type": "text", "text": f"this: {mark}"},
        {"type": "image_url", "image_url": {"url": mark}},
    ]
    row = trajectory_row(seen, asked, step=0)
    assert "iVBORw0KGgo" not in json.dumps(row)
    assert mark in row["conversation"]
