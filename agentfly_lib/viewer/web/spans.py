"""A trajectory as a page shows it: its turns with their times, and its tokens with what is known of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agentfly_lib.types import Segment, Trajectory, TrajectoryGroup, Turn
from agentfly_lib.viewer.text import TokenText, content_text, speaker
from agentfly_lib.visible import visible

__all__ = ["COLOURS", "TokenSpan", "TrajectoryView", "TurnView", "view_of"]

COLOURS = ("mask", "logprob", "advantage")
"""What a token's colour can stand for."""
_LONGEST = 20_000
"""Characters of one message that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """A sampled token, or a stretch of text that the policy was only shown."""

    text: str
    shade: str
    """Name of a style: `seen`, `sampled`, or one of the scales `p0` to `p5` and `a-3` to `a3`."""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One message."""

    speaker: str
    sampled: bool
    spans: tuple[TokenSpan, ...]
    facts: tuple[str, ...]
    start_percent: float
    """Where its bar begins on the trajectory's time line; turns follow each other."""
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryView:
    """One trajectory, ready for a template."""

    id: str
    group_id: str
    chain: int
    facts: tuple[tuple[str, str], ...]
    failure: str | None
    segments: tuple[tuple[TurnView, ...], ...]


def view_of(
    trajectory: Trajectory,
    group: TrajectoryGroup,
    *,
    chat: TokenText | None,
    colour: str = "mask",
    advantages: Mapping[str, Sequence[npt.NDArray[Any]]] | None = None,
) -> TrajectoryView:
    """What is shown of one chain of a group.

    chat: decodes token ids; without one, messages are shown as they were read, and no tokens.
    advantages: of each segment's tokens, by trajectory id; missing where a trajectory is not trained on.
    """
    whole = sum(turn.seconds for segment in trajectory.segments for turn in segment.turns) or 1.0
    passed = 0.0
    segments: list[tuple[TurnView, ...]] = []
    of_trajectory = (advantages or {}).get(trajectory.id)
    for number, segment in enumerate(trajectory.segments):
        views = list(_prompt(segment, chat, group if number == 0 else None))
        values = of_trajectory[number] if of_trajectory is not None and number < len(of_trajectory) else None
        for turn in segment.turns:
            views.append(
                TurnView(
                    speaker=speaker(turn.message),
                    sampled=turn.sampled,
                    spans=_spans(segment, turn, chat, colour, values),
                    facts=_turn_facts(turn, segment),
                    start_percent=100 * passed / whole,
                    percent=100 * turn.seconds / whole,
                )
            )
            passed += turn.seconds
        segments.append(tuple(views))
    failure = trajectory.failure
    return TrajectoryView(
        id=trajectory.id,
        group_id=trajectory.group_id,
        chain=trajectory.chain,
        facts=tuple(_facts(trajectory)),
        failure=None if failure is None else visible(f"{failure.kind} at {failure.where}: {failure.message}"),
        segments=tuple(segments),
    )


def _facts(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    yield "reward", "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    for name, value in trajectory.reward_parts.items():
        yield visible(f"reward part {name}"), f"{value:g}"
    if trajectory.env_reward is not None:
        yield "environment's reward", f"{trajectory.env_reward:g}"
    yield "ended", str(trajectory.stop)
    yield "turns", str(trajectory.num_turns)
    yield "tokens", f"{trajectory.num_sampled} sampled of {sum(map(len, trajectory.segments))}"
    if trajectory.policy_version >= 0:
        yield "policy version", str(trajectory.policy_version)
    for name in ("seconds", "generate_seconds", "tool_seconds", "wait_seconds"):
        if name in trajectory.metrics:
            yield name.replace("_", " "), f"{trajectory.metrics[name]:.3g} s"


def _turn_facts(turn: Turn, segment: Segment) -> tuple[str, ...]:
    facts = [f"{turn.end - turn.start} tokens", f"{turn.seconds:.3g} s"]
    if turn.sampled:
        values = segment.logprobs[turn.start : turn.end]
        known = values[~np.isnan(values)]
        if len(known):
            facts.append(f"mean log-prob {known.mean():.3f}")
        if turn.finish is not None:
            facts.append(f"finish {turn.finish}")
    return tuple(facts)


def _prompt(segment: Segment, chat: TokenText | None, group: TrajectoryGroup | None) -> Iterator[TurnView]:
    """What stood before the first turn: as it was encoded, or the problem's messages."""
    end = segment.turns[0].start if segment.turns else len(segment)
    if chat is not None:
        text = _decode(chat, segment.token_ids[:end])
        yield _silent("prompt", text, (f"{end} tokens",))
    elif group is not None:
        for message in group.problem.messages:
            yield _silent(speaker(message), content_text(message), ())


def _silent(speaker: str, text: str, facts: tuple[str, ...]) -> TurnView:
    span = TokenSpan(text=_cut(visible(text)), shade="seen")
    return TurnView(speaker=speaker, sampled=False, spans=(span,), facts=facts, start_percent=0.0, percent=0.0)


def _spans(
    segment: Segment,
    turn: Turn,
    chat: TokenText | None,
    colour: str,
    advantages: npt.NDArray[Any] | None,
) -> tuple[TokenSpan, ...]:
    start, end, message = turn.start, turn.end, turn.message
    if chat is None:
        shade = "sampled" if segment.loss_mask[start:end].any() else "seen"
        return (TokenSpan(text=_cut(visible(content_text(message))), shade=shade),)
    spans: list[TokenSpan] = []
    stream, place = chat.stream_decoder(), start
    while place < end:
        if not segment.loss_mask[place]:
            stop = place
            while stop < end and not segment.loss_mask[stop]:
                stop += 1
            text = stream.finish() + _decode(chat, segment.token_ids[place:stop])
            spans.append(TokenSpan(text=_cut(visible(text)), shade="seen"))
            stream, place = chat.stream_decoder(), stop
            continue
        piece = stream.push([int(segment.token_ids[place])])
        logprob = float(segment.logprobs[place])
        advantage = None if advantages is None else float(advantages[place])
        spans.append(
            TokenSpan(
                text=visible(piece) or "·",
                shade=_shade(colour, logprob, advantage),
                title=_title(int(segment.token_ids[place]), logprob, advantage),
            )
        )
        place += 1
    rest = stream.finish()
    if rest:
        spans.append(TokenSpan(text=visible(rest), shade="sampled"))
    return tuple(spans)


def _shade(colour: str, logprob: float, advantage: float | None) -> str:
    if colour == "logprob":
        if math.isnan(logprob):
            return "unknown"
        return f"p{min(5, int(6 * math.exp(min(logprob, 0.0))))}"
    if colour == "advantage":
        if advantage is None:
            return "unknown"
        return f"a{max(-3, min(3, round(1.5 * advantage)))}"
    return "sampled"


def _title(token: int, logprob: float, advantage: float | None) -> str:
    parts = [f"token {token}"]
    parts.append("no log-prob" if math.isnan(logprob) else f"log-prob {logprob:.4f} (p {math.exp(logprob):.3f})")
    if advantage is not None:
        parts.append(f"advantage {advantage:.4f}")
    return ", ".join(parts)


def _decode(chat: TokenText, ids: Any) -> str:
    stream = chat.stream_decoder()
    return stream.push([int(token) for token in ids]) + stream.finish()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n[{len(text) - _LONGEST} more characters]"
