"""Rewards for groups of trajectories: concurrent, each under its time limit, each ending as exactly one score.

the chain failed                              failed, its reward is not asked
a limit cut the chain                         truncated, with its reward
None, a time-out, or an error after retries   dropped, with the reason (truncated chains stay truncated)
else                                          scored
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from agentfly_lib.rewards.asking import Answer, Asker
from agentfly_lib.rewards.composite import CompositeReward
from agentfly_lib.rewards.group_reward import GroupReward
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.store.score import Score, outcome_of
from agentfly_lib.types import Outcome, Problem, StopReason, Trajectory, TrajectoryGroup
from agentfly_lib.visible import visible

__all__ = ["score_groups", "with_rewards"]

logger = logging.getLogger(__name__)

_SHOWN_CHARS = 500
_LOOP_SECONDS = 0.005
"""Rewards that run on the loop let others have it after this long."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Chains of one problem that are asked about together, and where their scores belong."""

    places: Sequence[int]
    trajectories: Sequence[Trajectory]
    problem: Problem


def with_rewards(groups: Iterable[TrajectoryGroup], scores: Iterable[Score]) -> list[TrajectoryGroup]:
    """The groups with what `score_groups` has found of their trajectories."""
    by_id = {score.trajectory_id: score for score in scores}

    def scored(trajectory: Trajectory) -> Trajectory:
        score = by_id[trajectory.id]
        return dataclasses.replace(trajectory, reward=score.reward, reward_parts=score.parts)

    return [dataclasses.replace(group, trajectories=tuple(map(scored, group.trajectories))) for group in groups]


async def score_groups(
    reward: Reward,
    groups: Sequence[TrajectoryGroup],
    *,
    timeout: float,
    max_concurrency: int,
    retries: int,
) -> list[Score]:
    """One score per trajectory, in the order of groups and their trajectories.

    timeout: seconds of one call where the reward sets no limit. retries: tries after the first when it raises, where
    the reward sets no number; a time-out or a result that is no reward is not tried again.
    """
    asker = Asker(timeout=timeout, max_concurrency=max_concurrency, retries=retries)
    scores: list[Score | None] = [None] * sum(len(group.trajectories) for group in groups)
    work = _work(reward, groups, scores)
    pending: Iterator[_Work] = iter(work)

    async def drain() -> None:
        yielded = perf_counter()
        for item in pending:
            for place, score in zip(item.places, await _score(asker, reward, item), strict=True):
                scores[place] = score
            if reward.inline and perf_counter() - yielded > _LOOP_SECONDS:
                await asyncio.sleep(0)
                yielded = perf_counter()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(max_concurrency, len(work))):
            tasks.create_task(drain())
    result = [score for score in scores if score is not None]
    _report(reward, result)
    return result


def _work(reward: Reward, groups: Sequence[TrajectoryGroup], scores: list[Score | None]) -> list[_Work]:
    """What is to be asked; the scores of chains that failed are put in their places."""
    together = isinstance(reward, CompositeReward | GroupReward)
    work: list[_Work] = []
    start = 0
    for group in groups:
        places: list[int] = []
        for place, trajectory in enumerate(group.trajectories, start):
            if trajectory.stop is StopReason.FAILED:
                reason = trajectory.failure.message if trajectory.failure else "the trajectory failed"
                scores[place] = _as_score(trajectory, Answer(error=reason), seconds=0.0)
            else:
                places.append(place)
        for chosen in [places] * bool(places) if together else [[place] for place in places]:
            trajectories = [group.trajectories[place - start] for place in chosen]
            work.append(_Work(chosen, trajectories, group.problem))
        start += len(group.trajectories)
    return work


async def _score(asker: Asker, reward: Reward, work: _Work) -> list[Score]:
    started = perf_counter()
    if isinstance(reward, CompositeReward | GroupReward):
        answers = await asker.ask_group(reward, work.trajectories, work.problem)
    else:
        answers = [await asker.ask(reward, work.trajectories[0], work.problem)]
    seconds = perf_counter() - started
    return [
        _as_score(trajectory, answer, seconds=seconds)
        for trajectory, answer in zip(work.trajectories, answers, strict=True)
    ]


def _as_score(trajectory: Trajectory, answer: Answer, *, seconds: float) -> Score:
    verdict = answer.verdict
    value = verdict.reward if verdict else None
    return Score(
        trajectory_id=trajectory.id,
        outcome=outcome_of(trajectory.stop, value),
        reward=value,
        parts=dict(verdict.parts) if verdict else {},
        seconds=seconds,
        error=answer.error,
    )


def _report(reward: Reward, scores: Sequence[Score]) -> None:
    """One line for all that could not be scored, however many there are."""
    unscored = [score for score in scores if score.error is not None and score.outcome is not Outcome.FAILED]
    if unscored:
        logger.warning(
            "%d of %d trajectories have no reward from %s; the first, %s: %s",
            len(unscored),
            len(scores),
            reward.name,
            unscored[0].trajectory_id,
            visible(" ".join((unscored[0].error or "").split())[:_SHOWN_CHARS]),
        )
