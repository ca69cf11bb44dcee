"""1 if a response has the form that was asked for, else 0: tags in order, a pattern, tool calls that can be read."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, Literal

from agentfly_lib.chat import MalformedCall
from agentfly_lib.chat.parsers import get_parser
from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards.call import JudgedInWorker
from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.types import FinishReason, Trajectory

__all__ = ["format_followed", "matches", "tags_in_order"]

PATTERN_SECONDS = 5.0
"""Limit of the matches of one trajectory; a text on which the pattern backtracks for ever does not match."""
_MATCHES = "agentfly_lib.rewards.format:matches"


@reward_factory
def format_followed(
    *,
    tags: tuple[str, ...] = (),
    pattern: str | None = None,
    turns: Literal["last", "all"] = "last",
    parser: Any = "hermes",
) -> Reward:
    """What is set must hold; if neither `tags` nor `pattern` is, the tool calls are looked at.

    tags: names of tags that hold something and stand in this order, each once: `("think", "answer")`.
    pattern: a regular expression that the text matches from beginning to end; `.` is also a new line.
    turns: whether that goes for the last turn that the policy took or for all of them.
    parser: of tool calls: its name (`chat.parser_names`), or anything with `parse(text)`. Every
        turn must have been ended by the policy, with calls that can be read.

    Raises `ConfigError` for a pattern or a parser that is none.
    """
    reader = get_parser(parser) if isinstance(parser, str) else parser
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ConfigError(f"reward 'format': the pattern {pattern!r} is not a regular expression: {error}") from error

    def followed(trajectory: Trajectory) -> float | Awaitable[float]:
        sampled = [turn for segment in trajectory.segments for turn in segment.turns if turn.sampled]
        if not tags and pattern is None:
            ended = all(turn.finish is not FinishReason.LENGTH for turn in sampled)
            return float(bool(sampled) and ended and all(_readable(_text(turn.message), reader) for turn in sampled))
        texts = [_text(turn.message) for turn in (sampled if turns == "all" else sampled[-1:])]
        if not texts or not all(tags_in_order(text, tags) for text in texts):
            return 0.0
        if pattern is None:
            return 1.0
        return JudgedInWorker(target=_MATCHES, keywords={"pattern": pattern, "texts": texts}, seconds=PATTERN_SECONDS)

    return Reward(name="format", function=followed, inline=True)


def tags_in_order(text: str, tags: tuple[str, ...]) -> bool:
    """Whether each tag is opened once and closed once, around something, one after the other."""
    position = 0
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        start, end = text.find(opening, position), text.find(closing, position)
        if start < 0 or end < start or not text[start + len(opening) : end].strip():
            return False
        position = end + len(closing)
    return True


def matches(pattern: str, texts: list[str]) -> bool:
    """Whether every text matches as a whole. Hostile text makes some patterns take for ever: called in a worker."""
    compiled = re.compile(pattern, re.DOTALL)
    try:
        return all(compiled.fullmatch(text.strip()) for text in texts)
    except MemoryError:
        return False


def _readable(text: str, parser: Any) -> bool:
    calls = parser.parse(text).calls
    return not any(isinstance(call, MalformedCall) for call in calls)


def _text(message: Any) -> str:
    return str(message.get("content") or "")
