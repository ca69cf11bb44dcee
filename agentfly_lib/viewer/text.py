"""A trajectory as text to read: its turns, the tool calls and what they gave, rewards, and what was trained on.

Tokens that the policy sampled (mask 1) stand between ⟦ and ⟧; in colour they are underlined, from green to red the less
probable they were. Everything else was seen but not learnt. The text is decoded from the very ids in the shard; control
characters in it are made visible, so that a model's output cannot steer the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from agentfly_lib.types import Message, Problem, Segment, StopReason, Trajectory, Turn
from agentfly_lib.visible import visible, without_data

__all__ = ["TokenText", "content_text", "render_trajectory", "speaker"]

_OPEN, _CLOSE = "⟦", "⟧"
_PROMPT_LINES = 24
_SHADES = ((0.9, "bright_green"), (0.5, "green"), (0.1, "yellow"), (0.0, "red"))
"""Style of a token of at least this probability."""

_ENDINGS = {
    StopReason.FINISHED: "the agent finished",
    StopReason.MAX_TURNS: "cut by the limit of turns, with a call that was not run",
    StopReason.MAX_TOKENS: "cut by the limit of sampled tokens",
    StopReason.CONTEXT_FULL: "cut: the context is full",
    StopReason.NO_TOOL_CALL: "the agent did not act",
    StopReason.FAILED: "failed",
}


class _Stream(Protocol):
    def push(self, token_ids: Sequence[int], /) -> str: ...

    def finish(self) -> str: ...


class TokenText(Protocol):
    """What turns token ids into text. A `ChatFormat` is one."""

    def stream_decoder(self) -> _Stream: ...


def render_trajectory(trajectory: Trajectory, problem: Problem, chat: TokenText | None) -> RenderableType:
    """A renderable for `rich`; it reads as well without colour.

    `chat` is the format of the model that made the trajectory. Without one, only the messages are shown: which tokens
    were trained on cannot be seen then.
    """
    parts: list[RenderableType] = [Rule(Text(visible(f"{trajectory.id}  {_reward(trajectory)}")), align="left")]
    parts.append(_summary(trajectory))
    if trajectory.failure is not None:
        failure = trajectory.failure
        tries = f" after {failure.attempts} tries" if failure.attempts > 1 else ""
        parts.append(Text(visible(f"FAILED ({failure.kind}) at {failure.where}{tries}: {failure.message}"), "bold red"))
    if chat is None or not trajectory.segments:
        parts += _messages((*problem.messages, *trajectory.messages))
    else:
        number = 0
        for index, segment in enumerate(trajectory.segments):
            if len(trajectory.segments) > 1:
                parts.append(Text(f"segment {index + 1} of {len(trajectory.segments)}: history was rewritten", "dim"))
            parts += _segment(segment, chat, number)
            number += sum(turn.sampled for turn in segment.turns)
    parts += _verdict(trajectory, problem)
    return Group(*parts)


def _summary(trajectory: Trajectory) -> Text:
    metrics, tokens = trajectory.metrics, sum(map(len, trajectory.segments))
    facts = [
        f"problem {trajectory.problem_id}",
        _ENDINGS[trajectory.stop],
        _count(trajectory.num_turns, "turn"),
        f"{trajectory.num_sampled} of {_count(tokens, 'token')} sampled",
        _count(int(metrics.get("tool_calls", 0)), "tool call"),
    ]
    if errors := int(metrics.get("tool_errors", 0)):
        facts.append(_count(errors, "tool error"))
    facts += [
        f"{what} {metrics[name]:.2f} s"
        for what, name in (("generation", "generate_seconds"), ("tools", "tool_seconds"))
        if name in metrics
    ]
    if trajectory.attempt:
        facts.append(f"try {trajectory.attempt + 1}")
    return Text(visible(" · ".join(facts)), "dim")


def _reward(trajectory: Trajectory) -> str:
    return "no reward" if trajectory.reward is None else f"reward {trajectory.reward:g}"


def _verdict(trajectory: Trajectory, problem: Problem) -> list[RenderableType]:
    lines = [_reward(trajectory)]
    lines += [f"{name} {value:g}" for name, value in trajectory.reward_parts.items()]
    if trajectory.env_reward is not None:
        lines.append(f"from the environment {trajectory.env_reward:g}")
    lines += [f"{name} = {_shorten(str(value), 80)}" for name, value in problem.columns.items()]
    return [Text(visible(" · ".join(lines)), "bold")]


def _segment(segment: Segment, chat: TokenText, sampled_before: int) -> Iterator[RenderableType]:
    start = min((turn.start for turn in segment.turns), default=len(segment))
    prompt = "".join(piece for piece, _ in _pieces(segment, 0, start, chat))
    yield _label("prompt", f"{_count(start, 'token')}, not trained on")
    yield _body(Text(visible(_middle_cut(prompt, _PROMPT_LINES)), "dim"))
    number = sampled_before
    for turn in segment.turns:
        if turn.sampled:
            number += 1
            yield _label(f"policy, turn {number}", _sampled_facts(segment, turn), "bold")
            yield _body(_trained(segment, turn, chat))
        else:
            yield _label(speaker(turn.message), _observed_facts(turn))
            text = "".join(piece for piece, _ in _pieces(segment, turn.start, turn.end, chat))
            yield _body(Text(visible(text or content_text(turn.message)), "dim"))


def _trained(segment: Segment, turn: Turn, chat: TokenText) -> Text:
    text = Text().append(_OPEN, "bold")
    for piece, logprob in _pieces(segment, turn.start, turn.end, chat):
        text.append(visible(piece), f"underline {_shade(logprob)}")
    return text.append(_CLOSE, "bold")


def _pieces(segment: Segment, start: int, end: int, chat: TokenText) -> Iterator[tuple[str, float]]:
    """Text and log-prob of each token; what spans several tokens comes with the one that completes it."""
    stream, logprob = chat.stream_decoder(), math.nan
    for token, value in zip(segment.token_ids[start:end].tolist(), segment.logprobs[start:end].tolist(), strict=True):
        logprob = value
        yield stream.push([token]), logprob
    yield stream.finish(), logprob


def _sampled_facts(segment: Segment, turn: Turn) -> str:
    logprobs = segment.logprobs[turn.start : turn.end]
    known = logprobs[~np.isnan(logprobs)]
    facts = [f"{_count(turn.end - turn.start, 'token')} trained on"]
    if known.size:
        facts.append(f"log-prob mean {known.mean():.2f}, least {known.min():.2f}")
    if known.size < logprobs.size:
        facts.append(f"{logprobs.size - known.size} without log-prob")
    facts += [f"ended by {turn.finish}", f"policy version {turn.policy_version}", f"{turn.seconds:.2f} s"]
    return " · ".join(facts)


def _observed_facts(turn: Turn) -> str:
    if turn.start == turn.end:
        return "no tokens of its own here"
    return f"{_count(turn.end - turn.start, 'token')}, not trained on · {turn.seconds:.2f} s"


def _messages(messages: Iterable[Message]) -> Iterator[RenderableType]:
    for message in messages:
        yield _label(speaker(message), "")
        yield _body(Text(visible(content_text(message))))


def speaker(message: Message) -> str:
    """Whose message it is: the role, and the tool's name."""
    name = message.get("name")
    return visible(f"{message.get('role', '?')} {name}" if name else str(message.get("role", "?")))


def content_text(message: Message) -> str:
    """What a message says, as text; of pictures and other `data:` URLs only a mark is left."""
    content = message.get("content")
    if isinstance(content, list):  # parts: texts, and pictures
        parts = [part for part in content if isinstance(part, dict)]
        text = "\n".join(str(part.get("text") or f"[{part.get('type', 'part')}]") for part in parts)
    else:
        text = content if isinstance(content, str) else "" if content is None else str(without_data(content))
    return without_data(text)


def _label(who: str, facts: str, style: str = "") -> Text:
    label = Text(f"▸ {who}", style)
    return label.append(f"  {facts}", "dim") if facts else label


def _body(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 4), expand=False)


def _shade(logprob: float) -> str:
    if math.isnan(logprob):
        return "magenta"
    return next(style for probability, style in _SHADES if math.exp(logprob) >= probability)


def _middle_cut(text: str, limit: int) -> str:
    lines = text.split("\n")
    if len(lines) <= limit:
        return text
    half = limit // 2
    return "\n".join([*lines[:half], f"[... {len(lines) - 2 * half} lines ...]", *lines[-half:]])


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
