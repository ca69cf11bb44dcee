"""What the run's learner holds and writes, and who may use it now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentfly_lib.refs import LearnerRef

__all__ = ["Learning", "Saving", "Turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A checkpoint that was begun."""

    version: int
    learner: LearnerRef
    """Who writes it."""


class Learning:
    """Ranks must hear of one thing after another: whoever lets the learner do something does it in a `turn`.

    What is noted here changes only there.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._version = 0
        self._saving: Saving | None = None

    @property
    def version(self) -> int:
        """Of the policy that the learner holds."""
        return self._version

    @property
    def saving(self) -> Saving | None:
        """The checkpoint that is being written, or is owed because that failed."""
        return self._saving

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """The learner is the block's alone."""
        async with self._lock:
            yield Turn(self)


class Turn:
    """What may be noted of the learner by the one whose turn it is."""

    def __init__(self, learning: Learning) -> None:
        self._learning = learning

    def holds(self, version: int) -> None:
        """The learner holds this version, or is about to be brought to it."""
        self._learning._version = version

    def saves(self, version: int, learner: LearnerRef) -> None:
        """A checkpoint of this version is begun."""
        self._learning._saving = Saving(version=version, learner=learner)

    def saved(self) -> None:
        """What was begun is complete, or made up for."""
        self._learning._saving = None
