"""What stays when a context is nearly full. Pure functions over messages; the chain opens the new segment.

The first prompt's messages (the head) always stay. After it stand the chain's steps, each a reply of the policy and
what answered it. A sliding window leaves out the oldest steps; a summary, which the policy writes as a turn of its own,
takes the place of all of them. Both leave a conversation that goes on as the one before did, so a chat template that
could write that one can write this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TypeVar

from agentfly_lib.configs.agent import NoCompactionConfig, SlidingWindowConfig, SummaryConfig
from agentfly_lib.types import Message

__all__ = ["is_due", "sliding_window", "window_tokens", "with_request", "with_summary"]

_LEFT_OUT = "[Earlier turns are left out here to save space]"
_WINDOW_WITHOUT_KEEP = 0.5

Compaction = NoCompactionConfig | SlidingWindowConfig | SummaryConfig
Rendered = TypeVar("Rendered", bound=Sized)


def is_due(config: Compaction, *, tokens: int, context_length: int) -> bool:
    """A prompt of that many tokens is to be made shorter."""
    return not isinstance(config, NoCompactionConfig) and tokens >= config.start_at * context_length


def window_tokens(config: Compaction, *, context_length: int) -> int:
    """Tokens that a sliding window may keep."""
    keep = config.keep if isinstance(config, SlidingWindowConfig) else _WINDOW_WITHOUT_KEEP
    return int(keep * context_length)


def sliding_window(
    head: Sequence[Message],
    steps: Sequence[Message],
    render: Callable[[Sequence[Message]], Rendered],
    *,
    max_tokens: int,
) -> tuple[list[Message], Rendered] | None:
    """The head and the newest steps that fit into `max_tokens`, always the last one, and their prompt.

    None if there is only one step, so that nothing can be left out.
    """
    starts = [index for index, message in enumerate(steps) if message.get("role") == "assistant"]
    kept: tuple[list[Message], Rendered] | None = None
    for left_out in range(len(starts) - 1, 0, -1):
        messages = [*_with_note(head, _LEFT_OUT), *steps[starts[left_out] :]]
        prompt = render(messages)
        if kept is not None and len(prompt) > max_tokens:
            break
        kept = messages, prompt
    return kept


def with_request(results: Sequence[Message], instruction: str) -> list[Message]:
    """What answers the last reply, with the request for a summary at its end, inside the last message."""
    return _with_note(results, instruction) if results else [{"role": "user", "content": instruction}]


def with_summary(head: Sequence[Message], summary: str) -> list[Message]:
    """The head, and behind its last message what the policy wrote down."""
    words = summary.rpartition("</think>")[2].strip()
    return _with_note(head, f"[Your own summary of the work so far]\n{words}")


def _with_note(messages: Sequence[Message], note: str) -> list[Message]:
    """The note becomes part of the last message: templates may refuse one of its own (two users' in a row, a user's
    after a tool's)."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, list):
        return [*before, {**last, "content": [*content, {"type": "text", "text": note}]}]
    return [*before, {**last, "content": f"{content}\n\n{note}" if content else note}]
