"""Score the shards of one step as they land."""

from __future__ import annotations

from statistics import fmean

from prefect import task

from agentfly_lib.configs import RewardConfig
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import ScoresRef
from agentfly_lib.rewards.registry import build_reward
from agentfly_lib.rewards.stage import ScoredStep, score_step
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.types import Outcome
from agentfly_lib.viewer.live import StageBar
from tasks.options import RETRIED, within
from tasks.session import current_session

__all__ = ["rescore", "score", "score_directory"]

_MARGIN_SECONDS = 60.0
"""The collection ends by itself at its limit; scoring gives up only after that."""


@task(name="score", task_run_name="score-{step:06d}", **RETRIED)
async def score(step: int) -> ScoresRef:
    """Rewards beside the shards, started when the first part lands and ended after the last one."""
    session = current_session()
    limit = 2 * session.collect_seconds + session.queue_seconds + _MARGIN_SECONDS
    async with within(limit, f"score {step}"):
        directory = session.directory.step(step)
        with session.display.stage(f"score-{step:06d}", total=session.requested) as bar:
            scored = await score_directory(session, directory, bar)
        session.times.scored(step, scored)
        return scores_ref(session, directory, step, scored)


@task(name="rescore", task_run_name="rescore-{step:06d}", **RETRIED)
async def rescore(step: int, reward: RewardConfig) -> ScoresRef:
    """Another reward over the stored rollouts of a step."""
    session = current_session()
    directory = session.directory.step(step)
    async with within(session.config.rollout.stage_timeout_seconds + _MARGIN_SECONDS, f"rescore {step}"):
        with session.display.stage(f"rescore-{step:06d}", total=session.requested) as bar:
            scored = await score_step(
                directory,
                build_reward(reward),
                config=reward,
                follow_seconds=_MARGIN_SECONDS,
                on_progress=lambda done, total: bar.update(completed=done, total=total),
            )
    rewards = [
        trajectory.reward
        for group in scored.groups
        for trajectory in group.trajectories
        if trajectory.reward is not None
    ]
    if rewards:
        session.tracker.log_metrics(step, {f"rescored/{reward.identity}/mean": fmean(rewards)})
    return scores_ref(session, directory, step, scored, mean=fmean(rewards) if rewards else None)


async def score_directory(session: Session, directory: StepDirectory, bar: StageBar) -> ScoredStep:
    """Scores one step or evaluation with the run's reward."""
    return await score_step(
        directory,
        session.agent.reward,
        config=session.config.agent.reward,
        follow_seconds=session.config.rollout.stage_timeout_seconds + session.queue_seconds + _MARGIN_SECONDS,
        on_progress=lambda done, total: bar.update(completed=done, total=total),
    )


def scores_ref(
    session: Session, directory: StepDirectory, step: int, scored: ScoredStep, mean: float | None = None
) -> ScoresRef:
    """What the flow needs to know of the scores."""
    counts = scored.manifest.counts
    return ScoresRef(
        path=directory.scores,
        step=step,
        reward=scored.manifest.reward,
        mean=mean,
        trajectories=sum(counts.values()),
        scored=counts.get(Outcome.SCORED, 0),
        truncated=counts.get(Outcome.TRUNCATED, 0),
        failed=counts.get(Outcome.FAILED, 0),
        dropped=counts.get(Outcome.DROPPED, 0),
    )
