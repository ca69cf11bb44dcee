"""Rewards for groups of trajectories: concurrent, each under its time limit, each ending as exactly one score.

the chain failed                              failed, its reward is not asked
a limit cut the chain                         truncated, with its reward
None, a time-out, or an error after retries   dropped, with the reason (truncated chains stay truncated)
else                                          scored
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from time import perf_counter

from agentfly_lib.errors import RewardError
from agentfly_lib.rewards.call import CallFailed, CallTimedOut, call_reward
from agentfly_lib.rewards.reward import Reward, Verdict
from agentfly_lib.store.scores import Score, outcome_of
from agentfly_lib.types import Outcome, Problem, StopReason, Trajectory, TrajectoryGroup

__all__ = ["score_groups"]

logger = logging.getLogger(__name__)

_LOOP_SECONDS = 0.005
"""Rewards that run on the loop let others have it after this long."""


async def score_groups(
    reward: Reward,
    groups: Sequence[TrajectoryGroup],
    *,
    timeout: float,
    max_concurrency: int,
    retries: int,
) -> list[Score]:
    """One score per trajectory, in the order of groups and their trajectories.

    timeout: seconds of one call where the reward sets no limit. retries: tries after the first when it raises; a
    time-out or a result that is no reward is not tried again.
    """
    work = [(trajectory, group.problem) for group in groups for trajectory in group.trajectories]
    scores: list[Score | None] = [None] * len(work)
    pending: Iterator[int] = iter(range(len(work)))

    async def drain() -> None:
        yielded = perf_counter()
        for index in pending:
            scores[index] = await _score(reward, *work[index], timeout=timeout, retries=retries)
            if reward.inline and perf_counter() - yielded > _LOOP_SECONDS:
                await asyncio.sleep(0)
                yielded = perf_counter()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(max_concurrency, len(work))):
            tasks.create_task(drain())
    result = [score for score in scores if score is not None]
    _report(reward, result)
    return result


async def _score(reward: Reward, trajectory: Trajectory, problem: Problem, *, timeout: float, retries: int) -> Score:
    if trajectory.stop is StopReason.FAILED:
        reason = trajectory.failure.message if trajectory.failure else "the trajectory failed"
        return Score(trajectory_id=trajectory.id, outcome=outcome_of(trajectory.stop, None), reward=None, error=reason)
    started = perf_counter()
    verdict, error = None, None
    for attempt in range(retries + 1):
        try:
            verdict, error = await _ask(reward, trajectory, problem, timeout), None
            break
        except CallFailed as failure:
            error = f"reward {reward.name!r} failed: {failure}"
            logger.debug("%s (trajectory %s, try %d)", error, trajectory.id, attempt + 1)
        except CallTimedOut as failure:
            error = f"reward {reward.name!r} {failure}"
            break
        except RewardError as refusal:
            error = str(refusal)
            break
    if verdict is None and error is None:
        error = f"reward {reward.name!r} returned None: it cannot be scored"
    value = verdict.reward if verdict else None
    return Score(
        trajectory_id=trajectory.id,
        outcome=outcome_of(trajectory.stop, value),
        reward=value,
        parts=dict(verdict.parts) if verdict else {},
        seconds=perf_counter() - started,
        error=error,
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
            unscored[0].error,
        )


async def _ask(reward: Reward, trajectory: Trajectory, problem: Problem, timeout: float) -> Verdict | None:
    seconds = timeout if reward.timeout is None else reward.timeout
    return reward.read(await call_reward(reward, reward.bind(trajectory, problem), seconds=seconds))
