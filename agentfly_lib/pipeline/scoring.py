"""Score the shards of one step as they land."""

from __future__ import annotations

from statistics import fmean

from agentfly_lib.configs import RewardConfig
from agentfly_lib.pipeline import limits
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import ScoresRef
from agentfly_lib.rewards.registry import build_reward
from agentfly_lib.rewards.stage import ScoredStep, score_step
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.types import Outcome
from agentfly_lib.viewer.live import StageBar

__all__ = ["rescore", "score", "score_directory"]


async def score(session: Session, step: int) -> ScoresRef:
    """Rewards beside the shards, started when the first part lands and ended after the last one."""
    directory, rollout = session.directory.step(step), session.config.rollout
    with session.display.stage(f"score-{step:06d}", total=rollout.problems_per_step * rollout.chains) as bar:
        scored = await score_directory(session, directory, bar)
    session.times.scored(step, scored)
    return _scores_ref(directory, step, scored)


async def rescore(session: Session, step: int, reward: RewardConfig) -> ScoresRef:
    """Another reward over the stored rollouts of a step."""
    directory, rollout = session.directory.step(step), session.config.rollout
    with session.display.stage(f"rescore-{step:06d}", total=rollout.problems_per_step * rollout.chains) as bar:
        scored = await score_step(
            directory,
            build_reward(reward),
            config=reward,
            follow_seconds=limits.SCORING_SECONDS,
            on_progress=lambda done, total: bar.update(completed=done, total=total),
        )
    rewards = [
        trajectory.reward
        for group in scored.groups
        for trajectory in group.trajectories
        if trajectory.reward is not None
    ]
    if rewards:
        session.tracker.log_metrics(step, {f"rescored/{scored.manifest.reward}/mean": fmean(rewards)})
    return _scores_ref(directory, step, scored, mean=fmean(rewards) if rewards else None)


async def score_directory(session: Session, directory: StepDirectory, bar: StageBar) -> ScoredStep:
    """Scores one step or evaluation with the run's reward."""
    return await score_step(
        directory,
        session.agent.reward,
        config=session.config.agent.reward,
        follow_seconds=limits.follow(session.config).seconds,
        on_progress=lambda done, total: bar.update(completed=done, total=total),
    )


def _scores_ref(directory: StepDirectory, step: int, scored: ScoredStep, mean: float | None = None) -> ScoresRef:
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
