"""The text that a template puts after a reply, found by rendering twice.

`before` is the conversation up to the reply with the generation prompt, `after` the conversation with the reply and
what came back to it, again with the generation prompt. If `after` does not go on from `before` and the reply, the
template has rewritten history, and no bridge exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentfly_lib.types import ImageSpan

__all__ = ["Bridge", "text_after_end_of_turn", "text_after_reply", "text_after_turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """What the engine sees next."""

    ids: list[int]
    """Appended with mask 0; or, if `rewritten`, the whole prompt of a new segment."""
    rewritten: bool = False
    images: tuple[ImageSpan, ...] = ()
    """The pictures among `ids`; their spans count from the first of these."""
    text: str | None = field(default=None, compare=False, repr=False)
    """The whole conversation as text, for the next bridge (`ChatFormat.bridge`); None where something in it spelled a
    control token."""


def text_after_reply(before: str, after: str, reply: str) -> str | None:
    """What follows `reply` in `after`, or None if `after` does not begin with `before` and the reply.

    Templates that trim a reply's white space are no rewriting: the sampled tokens stand, and white space that the
    reply already ends with is not repeated.
    """
    if not after.startswith(before):
        return None
    rest = after[len(before) :]
    if rest.startswith(reply):
        return rest[len(reply) :]
    core, trimmed = reply.strip(), rest.lstrip()
    if not trimmed.startswith(core):
        return None
    tail = trimmed[len(core) :]
    own_space = reply[len(reply.rstrip()) :]
    repeated = next(n for n in range(len(own_space), -1, -1) if tail.startswith(own_space[:n]))
    return tail[repeated:]


def text_after_turn(before: str, closed: str, after: str, *, thought: str, closers: Iterable[str]) -> str | None:
    """What follows the reply in `after`, where the template writes it from its parts, perhaps with other white space.

    `closed` is the conversation with the reply and nothing after it. The tail begins with what closes the turn (one of
    `closers`). None if the template changed what came before the reply, or left its `thought` out, or closes the turn
    in another way once something follows it.
    """
    if not closed.startswith(before):
        return None
    end, closer = max(((closed.rfind(each, len(before)), each) for each in closers), default=(-1, ""))
    body, whole = (closed, closed) if end < 0 else (closed[:end], closed[: end + len(closer)])
    if not after.startswith(whole) or thought not in body[len(before) :]:
        return None
    return after[len(body) :]


def text_after_end_of_turn(tail: str, end_of_turn: str, closers: Iterable[str] = ()) -> str:
    """`tail` without the end-of-turn token that the policy sampled itself (nor white space before it).

    `closers`: what templates of the family write in its place (`<|eot_id|>` where `<|eom_id|>` was sampled).
    """
    stripped = tail.lstrip()
    closers = tuple(closers)
    for closer in (end_of_turn, *(closers if end_of_turn in closers else ())):
        if stripped.startswith(closer):
            return stripped[len(closer) :]
    return tail
