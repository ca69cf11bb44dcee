"""A trajectory on paper: what a reader sees with colour, and what is left without."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from agentfly_lib.chat import StreamDecoder
from agentfly_lib.types import (
    Failure,
    FailureKind,
    FinishReason,
    Problem,
    Segment,
    StopReason,
    Trajectory,
    Turn,
)
from agentfly_lib.viewer.text import content_text, render_trajectory


class Bytes:
    """Every byte is a token."""

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(lambda ids: bytes(ids).decode(errors="replace"), chr)


def segment(prompt: str, *turns: tuple[str, dict], logprob: float = -0.5) -> Segment:
    ids, mask, spans = list(prompt.encode()), [False] * len(prompt.encode()), []
    for text, message in turns:
        sampled, start = message["role"] == "assistant", len(ids)
        ids += text.encode()
        mask += [sampled] * (len(ids) - start)
        extra = {"finish": FinishReason.STOP, "policy_version": 7} if sampled else {}
        spans.append(Turn(message=message, start=start, end=len(ids), sampled=sampled, seconds=0.25, **extra))
    return Segment(
        token_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask),
        logprobs=np.where(mask, logprob, np.nan).astype(np.float32),
        turns=tuple(spans),
    )


PROBLEM = Problem(id="p1", messages=({"role": "user", "content": "2+2?"},), columns={"answer": "4"})
CALL = {"role": "assistant", "content": "[double 2]"}
RESULT = {"role": "tool", "name": "double", "content": "4"}
ANSWER = {"role": "assistant", "content": "4 🙂"}


def trajectory(*segments: Segment, **changes) -> Trajectory:
    base = Trajectory(
        id="000001-00002/3",
        problem_id="p1",
        group_id="000001-00002",
        chain=3,
        segments=segments or (segment("Q 2+2? A ", ("[double 2]", CALL), (" T 4 A ", RESULT), ("4 🙂", ANSWER)),),
        stop=StopReason.FINISHED,
        reward=1.0,
        reward_parts={"format": 0.5},
        metrics={"tool_calls": 1.0, "generate_seconds": 0.5, "tool_seconds": 0.125},
    )
    return replace(base, **changes)


def shown(value: Trajectory, chat: object = None, *, colour: bool = False, problem: Problem = PROBLEM) -> str:
    console = Console(
        file=io.StringIO(),
        width=140,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    console.print(render_trajectory(value, problem, chat if chat != "none" else None))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_without_colour_the_trained_tokens_stand_between_marks_and_nothing_else_does():
    text = shown(trajectory(), Bytes())
    assert [part.split("⟧")[0] for part in text.split("⟦")[1:]] == ["[double 2]", "4 🙂"]
    for what in ("Q 2+2? A", "T 4 A", "tool double", "reward 1", "format 0.5", "answer = 4"):
        assert what in text
    assert "000001-00002/3" in text
    assert "the agent finished · 2 turns · 16 of 32 tokens sampled · 1 tool call" in text
    assert "log-prob mean -0.50, least -0.50" in text
    assert "policy version 7" in text
    assert "\x1b" not in text


def test_in_colour_the_trained_tokens_are_underlined_and_shaded_by_their_probability():
    likely, unlikely = "\x1b[4;92m", "\x1b[4;31m"
    for logprob, style, other in ((-0.01, likely, unlikely), (-5.0, unlikely, likely)):
        text = shown(trajectory(segment("Q A ", ("four", CALL), logprob=logprob)), Bytes(), colour=True)
        assert style in text
        assert other not in text


def test_a_character_of_several_tokens_is_shown_once_and_whole():
    assert shown(trajectory(), Bytes()).count("🙂") == 1


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (StopReason.MAX_TURNS, "limit of turns"),
        (StopReason.MAX_TOKENS, "limit of sampled tokens"),
        (StopReason.CONTEXT_FULL, "context is full"),
    ],
)
def test_a_limit_is_named(stop, words):
    assert words in shown(trajectory(stop=stop), Bytes())


def test_a_failure_is_named_with_who_where_and_how_often():
    failure = Failure(kind=FailureKind.INFRASTRUCTURE, message="engine gone", where="generate", attempts=2)
    text = shown(trajectory(stop=StopReason.FAILED, failure=failure, reward=None, reward_parts={}), Bytes())
    assert "FAILED (infrastructure) at generate after 2 tries: engine gone" in text
    assert "no reward" in text


def test_every_reason_to_stop_has_words():
    for stop in StopReason:
        assert shown(trajectory(stop=stop), Bytes())


def test_a_rewritten_history_is_shown_as_segments_with_turns_counted_on():
    first, second = segment("Q A ", ("one", CALL)), segment("Q ... T 4 A ", ("", RESULT), ("two", ANSWER))
    text = shown(trajectory(first, second), Bytes())
    assert "segment 1 of 2" in text
    assert "segment 2 of 2" in text
    assert text.index("policy, turn 1") < text.index("tool double") < text.index("policy, turn 2")
    assert "no tokens of its own here" in text


def test_a_trajectory_without_a_token_shows_the_question():
    assert "2+2?" in shown(trajectory(segments=()), Bytes())


def test_without_the_models_format_the_messages_are_shown():
    text = shown(trajectory(), "none")
    assert "2+2?" in text
    assert "[double 2]" in text
    assert "⟦" not in text


def test_a_models_output_cannot_steer_the_terminal_or_the_markup():
    text = shown(trajectory(segment("Q A ", ("\x1b[2J[red]x\x07\r\n", CALL))), Bytes())
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "␛[2J[red]x␇␍" in text


def test_neither_can_names_nor_columns():
    steer = "\x1b[2J\x9b1m\ud800"
    failure = Failure(kind=FailureKind.TOOL, message=steer, where=f"tool:{steer}")
    made = trajectory(id=steer, problem_id=steer, stop=StopReason.FAILED, failure=failure, reward_parts={steer: 1.0})
    problem = Problem(id=steer, messages=({"role": steer, "content": steer},), columns={steer: steer})
    for chat in (Bytes(), "none"):
        text = shown(made, chat, problem=problem)
        assert not {"\x1b", "\x9b", "\ud800"} & set(text)
        assert text.count("␛[2J\ufffd1m\ufffd") >= 5


def test_a_long_prompt_is_cut_in_the_middle_and_says_so():
    prompt = "\n".join(f"line {index}" for index in range(100))
    text = shown(trajectory(segment(prompt, ("four", CALL))), Bytes())
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("line 11") + 1 == lines.index("[... 76 lines ...]") == lines.index("line 88") - 1
    assert "line 50" not in lines


def test_pictures_are_marked_and_not_printed():
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    assert content_text({"role": "tool", "content": parts}) == "Look:\n[image_url]"


def test_addresses_that_carry_their_contents_are_marked():
    url = "data:image/png;base64," + "A" * 200
    assert content_text({"content": f"see {url}!"}) == "see [image/png, 222 characters]!"
    assert content_text(
        {"content": [{"type": "text", "text": url}, {"type": "image_url", "image_url": {"url": url}}]}
    ) == ("[image/png, 222 characters]\n[image_url]")
    assert content_text({"content": {"url": url}}) == "{'url': '[image/png, 222 characters]'}"
    for short in ("data:,hello", "the data: a, b", "data:image/png;base64,AAAA"):
        assert content_text({"content": short}) == short
