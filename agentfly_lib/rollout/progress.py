"""How far a collection is: values for a progress bar."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CollectProgress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectProgress:
    """A snapshot, taken whenever a chain ends. Groups that an earlier attempt had already stored count as done."""

    groups: int
    groups_done: int
    chains: int
    chains_done: int
    sampled_tokens: int = 0
    """Tokens that the policy sampled in this attempt, failed tries included."""
    failures: int = 0
    """Chains that ended as failed in this attempt, after their retries."""
    retries: int = 0
    """Tries after an infrastructure failure in this attempt."""
    dropped_groups: int = 0
    """Groups given up because the time was over; set at the end."""
