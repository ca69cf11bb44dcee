"""A trajectory as a page shows it: its turns with their times and calls, and its tokens with what is known of each.

Every token carries one style for each thing that its colour can stand for, so that a page changes colours without being
asked for again. Where a number is not known the style is the scale's `u`, and nothing is made up in its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from agentfly_lib.store.learned import LearnedTokens
from agentfly_lib.types import Message, Segment, Trajectory, TrajectoryGroup, Turn
from agentfly_lib.viewer.text import TokenText, content_text, speaker
from agentfly_lib.viewer.web.pictures import message_pictures
from agentfly_lib.visible import visible, without_data

__all__ = ["COLOURS", "Knowledge", "PictureLink", "TokenSpan", "TrajectoryView", "TurnView", "view_of"]

COLOURS = ("mask", "logprob", "ratio", "gap", "advantage", "version")
"""What a token's colour can stand for: that it was sampled; its log-prob; the ratio that the loss clips, of the policy
that trained on it to the policy at the start of the step; the gap, of that policy to the engine that sampled it; its
advantage; how many versions its weights were behind the newest of the step."""

PictureLink = Callable[[str, bytes], str | None]
"""Digest and bytes of a picture to an address for the page, or None where it is not shown."""

_LONGEST = 20_000
"""Characters of one message that are shown."""
_CALL_LENGTH = 2000
_OLDEST = 3
_TIMES = {
    "seconds": "time",
    "generate_seconds": "generating",
    "tool_seconds": "tools",
    "other_seconds": "our own work",
    "resource_wait_seconds": "tools waiting for resources",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What else is known of the tokens of a step, by trajectory."""

    learned: Mapping[tuple[str, int], LearnedTokens] = field(default_factory=dict)
    """What the update saw, by trajectory id and segment."""
    advantages: Mapping[str, Sequence[npt.NDArray[Any]]] = field(default_factory=dict)
    """Advantages as the config gives them, by segment: for steps of which nothing is recorded."""

    def of(self, trajectory: Trajectory, number: int) -> LearnedTokens | None:
        """Of one segment; None if nothing is known."""
        found = self.learned.get((trajectory.id, number))
        if found is not None or trajectory.id not in self.advantages:
            return found
        segments = self.advantages[trajectory.id]
        unknown = np.full(len(trajectory.segments[number]), np.nan, np.float32)
        if number >= len(segments) or len(segments[number]) != len(unknown):
            return None
        return LearnedTokens(old_logprobs=unknown, logprobs=unknown, advantages=segments[number])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """A sampled token, or a stretch of text that the policy was only shown."""

    text: str
    style: str
    """`seen`, or `t` and one style of each scale."""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One message."""

    speaker: str
    kind: str
    """`policy`, `tool`, `prompt` or `raw`."""
    spans: tuple[TokenSpan, ...]
    facts: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments of the tools that it calls."""
    pictures: tuple[str, ...] = ()
    """Addresses."""
    hidden_pictures: int = 0
    """Pictures that are not shown: no raster image, or too much for this page."""
    start_percent: float = 0.0
    """Where its bar begins on the trajectory's time line; turns follow each other."""
    percent: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryView:
    """One trajectory, ready for a template."""

    id: str
    group_id: str
    chain: int
    reward: float | None
    facts: tuple[tuple[str, str], ...]
    failure: str | None
    segments: tuple[tuple[TurnView, ...], ...]


def view_of(
    trajectory: Trajectory,
    group: TrajectoryGroup,
    *,
    chat: TokenText | None,
    knowledge: Knowledge | None = None,
    newest: int = -1,
    link: PictureLink | None = None,
) -> TrajectoryView:
    """What is shown of one chain of a group.

    chat: decodes token ids; without one, messages are shown as they were read, and no tokens.
    newest: version of the weights at the step, which the versions of tokens are held against.
    link: gives pictures an address; without one, they are only counted.
    """
    knowledge = knowledge or Knowledge()
    whole = sum(turn.seconds for segment in trajectory.segments for turn in segment.turns) or 1.0
    passed = 0.0
    segments: list[tuple[TurnView, ...]] = []
    for number, segment in enumerate(trajectory.segments):
        views = list(_prompt(trajectory, segment, chat, group if number == 0 else None, link))
        tokens = _Tokens(segment, knowledge.of(trajectory, number), newest)
        for turn in segment.turns:
            shown, hidden = _pictures(trajectory, turn.message, link)
            views.append(
                TurnView(
                    speaker="policy" if turn.sampled else speaker(turn.message),
                    kind="policy" if turn.sampled else "tool",
                    spans=_spans(tokens, turn, chat) if turn.sampled else _text(content_text(turn.message)),
                    calls=tuple(_calls(turn.message)) if turn.sampled else (),
                    pictures=shown,
                    hidden_pictures=hidden,
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
        reward=trajectory.reward,
        facts=tuple(_facts(trajectory)),
        failure=None if failure is None else visible(f"{failure.kind} at {failure.where}: {failure.message}"),
        segments=tuple(segments),
    )


def _facts(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    for name, value in trajectory.reward_parts.items():
        yield visible(f"reward part {name}"), f"{value:g}"
    if trajectory.env_reward is not None:
        yield "environment's reward", f"{trajectory.env_reward:g}"
    yield "ended", str(trajectory.stop)
    yield "turns", str(trajectory.num_turns)
    yield "tokens", f"{trajectory.num_sampled:,} sampled of {sum(map(len, trajectory.segments)):,}"
    if trajectory.policy_version >= 0:
        yield "policy version", str(trajectory.policy_version)
    if trajectory.attempt:
        yield "try", str(trajectory.attempt + 1)
    for name, label in _TIMES.items():
        if trajectory.metrics.get(name):
            yield label, _time(trajectory.metrics[name])


def _turn_facts(turn: Turn, segment: Segment) -> tuple[str, ...]:
    facts = [f"{turn.end - turn.start} tokens", _time(turn.seconds)]
    if turn.sampled:
        values = segment.logprobs[turn.start : turn.end]
        known = values[~np.isnan(values)]
        if len(known):
            facts.append(f"mean log-prob {known.mean():.3f}")
        if turn.finish is not None:
            facts.append(f"finish {turn.finish}")
    elif turn.reward is not None:
        facts.append(f"reward {turn.reward:g}")
    return tuple(facts)


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _prompt(
    trajectory: Trajectory,
    segment: Segment,
    chat: TokenText | None,
    group: TrajectoryGroup | None,
    link: PictureLink | None,
) -> Iterator[TurnView]:
    """What stood before the first turn: the problem's messages, and everything as it was encoded."""
    end = segment.turns[0].start if segment.turns else len(segment)
    left = {image.digest: trajectory.pictures[image.digest] for image in segment.images if image.end <= end}
    for message in group.problem.messages if group is not None else ():
        shown, hidden = _pictures(trajectory, message, link)
        left = {digest: data for digest, data in left.items() if digest not in message_pictures(message, left)}
        yield TurnView(
            speaker=speaker(message),
            kind="prompt",
            spans=_text(content_text(message)),
            pictures=shown,
            hidden_pictures=hidden,
        )
    if left:  # an agent may show what stands in the problem's columns
        shown, hidden = _links(left, link)
        yield TurnView(speaker="shown in the prompt", kind="prompt", spans=(), pictures=shown, hidden_pictures=hidden)
    if chat is not None:
        raw = _text(_decode(chat, segment, 0, end))
        yield TurnView(speaker="the prompt as it was encoded", kind="raw", spans=raw, facts=(f"{end} tokens",))


def _pictures(trajectory: Trajectory, message: Message, link: PictureLink | None) -> tuple[tuple[str, ...], int]:
    return _links(message_pictures(message, dict(trajectory.pictures)), link)


def _links(found: Mapping[str, bytes], link: PictureLink | None) -> tuple[tuple[str, ...], int]:
    links = [None if link is None else link(digest, data) for digest, data in found.items()]
    shown = tuple(each for each in links if each is not None)
    return shown, len(links) - len(shown)


def _calls(message: Message) -> Iterator[tuple[str, str]]:
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else {}
        arguments = function.get("arguments", "") if isinstance(function, dict) else ""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        name = function.get("name", "?") if isinstance(function, dict) else "?"
        yield visible(str(name)), _cut(visible(without_data(text)), _CALL_LENGTH)


def _text(text: str) -> tuple[TokenSpan, ...]:
    return (TokenSpan(text=_cut(visible(text)), style="seen"),) if text else ()


class _Tokens:
    """What is known of a segment's tokens, as styles and words."""

    def __init__(self, segment: Segment, learned: LearnedTokens | None, newest: int) -> None:
        self.segment = segment
        nothing = np.full(len(segment), np.nan, np.float32)
        self._logprobs = segment.logprobs
        self._ratio = nothing if learned is None else learned.logprobs - learned.old_logprobs
        self._gap = nothing if learned is None else learned.old_logprobs - segment.logprobs
        self._advantages = nothing if learned is None else learned.advantages
        self._versions, self._newest = segment.versions, newest

    def span(self, place: int, text: str) -> TokenSpan:
        logprob, advantage = float(self._logprobs[place]), float(self._advantages[place])
        ratio, gap = float(self._ratio[place]), float(self._gap[place])
        version = int(self._versions[place])
        style = f"t {_probability(logprob)} {_log_ratio('r', ratio)} {_log_ratio('g', gap)} {_signed(advantage)}"
        style += f" {'vu' if version < 0 else f'v{max(0, min(_OLDEST, self._newest - version))}'}"
        facts = [f"token {int(self.segment.token_ids[place])}"]
        facts.append(
            "no log-prob" if math.isnan(logprob) else f"log-prob {logprob:.4f} (p {math.exp(min(logprob, 0.0)):.3f})"
        )
        facts += [
            f"{name} {shown:.4f}"
            for name, shown in (("ratio", _exp(ratio)), ("engine gap", _exp(gap)), ("advantage", advantage))
            if not math.isnan(shown)
        ]
        if version >= 0:
            facts.append(f"version {version}")
        return TokenSpan(text=text, style=style, title=", ".join(facts))


def _spans(tokens: _Tokens, turn: Turn, chat: TokenText | None) -> tuple[TokenSpan, ...]:
    segment = tokens.segment
    if chat is None:
        style = "t" if segment.loss_mask[turn.start : turn.end].any() else "seen"
        text = content_text(turn.message)
        return (TokenSpan(text=_cut(visible(text)), style=style),) if text else ()
    spans: list[TokenSpan] = []
    stream, place = chat.stream_decoder(), turn.start
    while place < turn.end:
        if not segment.loss_mask[place]:
            stop = place
            while stop < turn.end and not segment.loss_mask[stop]:
                stop += 1
            spans.append(
                TokenSpan(text=_cut(visible(stream.finish() + _decode(chat, segment, place, stop))), style="seen")
            )
            stream, place = chat.stream_decoder(), stop
            continue
        piece = stream.push([int(segment.token_ids[place])])
        spans.append(tokens.span(place, visible(piece) or "·"))
        place += 1
    if rest := stream.finish():
        spans.append(TokenSpan(text=visible(rest), style="t"))
    return tuple(spans)


def _probability(logprob: float) -> str:
    return "pu" if math.isnan(logprob) else f"p{min(5, int(6 * math.exp(min(logprob, 0.0))))}"


def _log_ratio(scale: str, value: float) -> str:
    """Steps at ratios of 1.05, 1.2 and 1.5, and as far below 1."""
    if math.isnan(value):
        return f"{scale}u"
    steps = sum(abs(value) > math.log(limit) for limit in (1.05, 1.2, 1.5))
    return f"{scale}{int(math.copysign(steps, value)) if steps else 0}"


def _signed(advantage: float) -> str:
    return "au" if math.isnan(advantage) else f"a{max(-3, min(3, round(1.5 * advantage)))}"


def _exp(value: float) -> float:
    return math.exp(min(value, 20.0))


def _decode(chat: TokenText, segment: Segment, start: int, end: int) -> str:
    """Tokens as text; the placeholders of a picture as one mark."""
    parts: list[str] = []
    for image in segment.images:
        if start <= image.start and image.end <= end:
            parts += [_plain(chat, segment.token_ids[start : image.start]), f"[picture {image.digest[:8]}]"]
            start = image.end
    return "".join([*parts, _plain(chat, segment.token_ids[start:end])])


def _plain(chat: TokenText, ids: Any) -> str:
    stream = chat.stream_decoder()
    return stream.push([int(token) for token in ids]) + stream.finish()


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}\n[{len(text) - longest:,} more characters]"
