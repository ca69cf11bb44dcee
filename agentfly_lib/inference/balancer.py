"""Which of several engines a request goes to: the one that knows the longest part of its prompt and has room.

An engine keeps keys and values of prompts that it has seen, so a chain's next turn, and the other chains of its group,
are cheapest where the last one ran. Prompts are remembered by the hashes of their blocks, each hash covering all tokens
before it, so that a longer prompt is found by the part that it shares with an earlier one. What nobody knows goes where
rendezvous hashing (Thaler and Ravishankar 1998) says: another client says the same, and when an engine leaves, only its
own prompts move.

Affinity ends at a bound on load, as in consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam,
arXiv 1608.01350): no engine is given a request that would put it above `slack` times the mean. Pure logic, no clock.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

__all__ = ["BLOCK_TOKENS", "SLACK", "PrefixBalancer", "prefix_hashes"]

BLOCK_TOKENS = 32
"""Engines reuse whole blocks of at most this many tokens."""
SLACK = 1.25
"""An engine's requests in flight, at most, as a multiple of the mean over engines (rounded up)."""
_REMEMBERED_BLOCKS = 200_000


def prefix_hashes(token_ids: Sequence[int], block: int = BLOCK_TOKENS) -> list[int]:
    """One hash for each whole block of `token_ids` [P], which covers the blocks before it too: [P // block].

    Equal in every process.
    """
    ids, previous = tuple(token_ids), 0
    hashes = []
    for start in range(0, len(ids) - block + 1, block):
        previous = hash((previous, *ids[start : start + block]))
        hashes.append(previous)
    return hashes


class PrefixBalancer:
    """Counts what is in flight at each engine and remembers who has seen which prompt."""

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        slack: float = SLACK,
        block: int = BLOCK_TOKENS,
        remembered: int = _REMEMBERED_BLOCKS,
    ) -> None:
        """Start with the engines `names`; `remembered` blocks of prompts are kept, those used last."""
        if slack < 1:
            raise ValueError(f"slack={slack}: below 1 there may be no engine with room")
        self._slack = slack
        self._block = block
        self._remembered = remembered
        self._load = dict.fromkeys(names, 0)
        self._holders: OrderedDict[int, set[str]] = OrderedDict()

    @property
    def names(self) -> tuple[str, ...]:
        """Engines that take requests."""
        return tuple(self._load)

    def load(self, name: str) -> int:
        """Requests in flight at an engine; 0 if it is not here."""
        return self._load.get(name, 0)

    def join(self, name: str, *, load: int = 0) -> None:
        """An engine takes requests from now on, with `load` in flight; one that does so already is left alone."""
        self._load.setdefault(name, load)

    def leave(self, name: str) -> None:
        """An engine takes no more requests; what it had seen and what was in flight there is forgotten."""
        self._load.pop(name, None)
        for seen, holders in list(self._holders.items()):
            holders.discard(name)
            if not holders:
                del self._holders[seen]

    def choose(self, token_ids: Sequence[int], *, avoid: Collection[str] = ()) -> str | None:
        """The engine for a prompt [P], which then has one more request in flight; None if there is none to choose.

        avoid: engines that are not asked, whatever their load.
        """
        allowed = [name for name in self._load if name not in avoid]
        if not allowed:
            return None
        if len(allowed) == 1:  # nothing to choose, and nothing worth remembering
            self._load[allowed[0]] += 1
            return allowed[0]
        flying = sum(self._load[name] for name in allowed) + 1
        limit = math.ceil(self._slack * flying / len(allowed))
        roomy = {name for name in allowed if self._load[name] < limit}
        hashes = prefix_hashes(token_ids, self._block)
        name = self._nearest(hashes, roomy) or max(roomy, key=lambda each: _rank(each, hash(tuple(token_ids))))
        self._load[name] += 1
        self._remember(hashes, name)
        return name

    def done(self, name: str) -> None:
        """A request that went to this engine has ended there; quiet if the engine has left since."""
        if self._load.get(name, 0) > 0:
            self._load[name] -= 1

    def _nearest(self, hashes: list[int], roomy: set[str]) -> str | None:
        """Who knows the longest prefix; of several the least loaded."""
        for seen in reversed(hashes):
            if holders := self._holders.get(seen, set()) & roomy:
                return min(holders, key=lambda name: (self._load[name], -_rank(name, hashes[-1])))
        return None

    def _remember(self, hashes: list[int], name: str) -> None:
        for seen in hashes:
            self._holders.setdefault(seen, set()).add(name)
            self._holders.move_to_end(seen)
        while len(self._holders) > self._remembered:
            self._holders.popitem(last=False)


def _rank(name: str, key: int) -> int:
    """Rendezvous: a number for each pair, as if drawn at random, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(f"{name} {key}".encode(), digest_size=8).digest(), "big")
