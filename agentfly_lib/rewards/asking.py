"""Asks a reward of any kind about chains of one problem: under its limits, tried again where that may help.

Whatever a reward does, asking it ends in an `Answer`: a verdict, or the reason why there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from agentfly_lib.errors import RewardError
from agentfly_lib.rewards.call import CallFailed, CallTimedOut, call_reward
from agentfly_lib.rewards.composite import CompositeReward
from agentfly_lib.rewards.group_reward import GroupReward
from agentfly_lib.rewards.reward import Reward, Verdict
from agentfly_lib.together import together
from agentfly_lib.types import Problem, Trajectory

__all__ = ["Answer", "Asker"]

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF = 30.0

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a reward said of one chain: a verdict, or why not."""

    verdict: Verdict | None = None
    error: str | None = None


class Asker:
    """The recipe's limits, which hold for everything that is asked through it. Belongs to one event loop."""

    def __init__(self, *, timeout: float, max_concurrency: int, retries: int) -> None:
        self._timeout = timeout
        self._retries = retries
        self._places = asyncio.Semaphore(max_concurrency)
        self._own_places: dict[int, asyncio.Semaphore] = {}

    async def ask(self, reward: Reward, trajectory: Trajectory, problem: Problem) -> Answer:
        """One chain, by a reward of single chains."""
        verdict, error = await self._call(reward, lambda: reward.bind(trajectory, problem), reward.read)
        return Answer(verdict=verdict, error=error or _none(reward, verdict))

    async def ask_group(self, reward: Reward, trajectories: Sequence[Trajectory], problem: Problem) -> list[Answer]:
        """All chains of a problem, by a reward of any kind; none of them may have failed."""
        if isinstance(reward, CompositeReward):
            parts = await together([self.ask_group(part.reward, trajectories, problem) for part in reward.parts])
            return [_combined(reward, answers) for answers in zip(*parts, strict=True)]
        if isinstance(reward, GroupReward):
            return await self._ask_whole(reward, trajectories, problem)
        return await together([self.ask(reward, trajectory, problem) for trajectory in trajectories])

    async def _ask_whole(
        self, reward: GroupReward, trajectories: Sequence[Trajectory], problem: Problem
    ) -> list[Answer]:
        verdicts, error = await self._call(
            reward,
            lambda: reward.bind_group(trajectories, problem),
            lambda value: reward.read_group(value, len(trajectories)),
        )
        if verdicts is None:
            return [Answer(error=error)] * len(trajectories)
        return [Answer(verdict=verdict, error=_none(reward, verdict)) for verdict in verdicts]

    async def _call(
        self, reward: Reward, bind: Callable[[], Mapping[str, Any]], read: Callable[[Any], Read]
    ) -> tuple[Read | None, str | None]:
        seconds = self._timeout if reward.timeout is None else reward.timeout
        retries = self._retries if reward.retries is None else reward.retries
        error: str | None = None
        for attempt in range(retries + 1):
            if attempt and reward.backoff_seconds:
                await asyncio.sleep(min(reward.backoff_seconds * 2 ** (attempt - 1), _LONGEST_BACKOFF))
            try:
                keywords = bind()
                async with self._own_place(reward), self._place(reward):
                    value = await call_reward(reward, keywords, seconds=seconds)
                return read(value), None
            except CallFailed as failure:
                error = f"reward {reward.name!r} failed: {failure}"
                logger.debug("%s (try %d)", error, attempt + 1)
            except CallTimedOut as failure:
                return None, f"reward {reward.name!r} {failure}"
            except RewardError as refusal:
                return None, str(refusal)
        return None, error

    def _place(self, reward: Reward) -> AbstractAsyncContextManager[Any]:
        return nullcontext() if reward.inline else self._places

    def _own_place(self, reward: Reward) -> AbstractAsyncContextManager[Any]:
        if reward.max_concurrency is None:
            return nullcontext()
        if id(reward) not in self._own_places:
            self._own_places[id(reward)] = asyncio.Semaphore(reward.max_concurrency)
        return self._own_places[id(reward)]


def _none(reward: Reward, verdict: Verdict | None) -> str | None:
    return f"reward {reward.name!r} returned None: it cannot be scored" if verdict is None else None


def _combined(reward: CompositeReward, answers: Sequence[Answer]) -> Answer:
    try:
        verdict = reward.combine([answer.verdict for answer in answers])
    except RewardError as error:
        return Answer(error=str(error))
    if verdict is not None:
        return Answer(verdict=verdict)
    missing = (
        answer.error
        for part, answer in zip(reward.parts, answers, strict=True)
        if answer.verdict is None and not part.optional
    )
    return Answer(error=next(missing))
