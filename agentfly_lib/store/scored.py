"""Rollouts joined with their rewards: what an update or a report starts from."""

from __future__ import annotations

import dataclasses
import logging

from agentfly_lib.errors import LedgerError, ShardError
from agentfly_lib.store.layout import RunDirectory, StepDirectory
from agentfly_lib.store.manifest import iter_groups, read_rollout_manifest
from agentfly_lib.store.score import Score
from agentfly_lib.store.scores import read_score_manifest, read_scores
from agentfly_lib.store.shards import read_index
from agentfly_lib.types import Trajectory, TrajectoryGroup

__all__ = ["load_scored_groups", "scored_steps", "scores_so_far"]

logger = logging.getLogger(__name__)


def scored_steps(run: RunDirectory) -> list[StepDirectory]:
    """The steps that are collected and scored completely; of a run that was stopped, the last one mostly is not."""
    begun = [step for step in map(run.step, run.steps()) if step.score_manifest.exists()]
    whole = [step for step in begun if read_rollout_manifest(step).complete and read_score_manifest(step).complete]
    if len(whole) < len(begun):
        logger.warning(
            "%s: %d of %d steps are not scored to the end: left out", run.path, len(begun) - len(whole), len(begun)
        )
    return whole


def load_scored_groups(directory: StepDirectory) -> list[TrajectoryGroup]:
    """Every collected group with its rewards, ordered by group id and chain: the same list whatever finished first.

    A trajectory that failed or could not be scored has `reward=None`. Raises `LedgerError` if the collection or the
    scores are not complete, and `ShardError` if a file is damaged or scores speak of another part.
    """
    rollouts, scores = read_rollout_manifest(directory), read_score_manifest(directory)
    if not (rollouts.complete and scores.complete):
        stage = "scoring" if rollouts.complete else "the collection"
        raise LedgerError(f"{directory.path}: {stage} is not complete; run the same command again to finish it")
    by_name = {part.name: part for part in scores.parts}
    groups: list[TrajectoryGroup] = []
    for part, of_part in iter_groups(directory, rollouts):
        score_part = by_name.get(part.name)
        if score_part is None or score_part.rollouts_sha256 != part.sha256:
            raise ShardError(
                f"{directory.scores / part.name} does not score the present {directory.rollouts / part.name}"
            )
        rewards = {score.trajectory_id: score for score in read_scores(directory.scores / part.name, score_part)}
        for group in of_part:
            trajectories: list[Trajectory] = [
                dataclasses.replace(
                    trajectory, reward=rewards[trajectory.id].reward, reward_parts=rewards[trajectory.id].parts
                )
                for trajectory in sorted(group.trajectories, key=lambda each: each.chain)
            ]
            groups.append(dataclasses.replace(group, trajectories=tuple(trajectories)))
    return sorted(groups, key=lambda group: group.id)


def scores_so_far(directory: StepDirectory) -> dict[str, list[Score]] | None:
    """Scores of every group that is stored by now, by group id and in the order of chains, without reading a token.

    None while some part that the collection has written is not scored yet. Raises `ShardError` for a damaged file.
    """
    rollouts = read_rollout_manifest(directory)
    if not directory.score_manifest.exists():
        return None if rollouts.parts else {}
    by_name = {part.name: part for part in read_score_manifest(directory).parts}
    scored = {name: part.rollouts_sha256 for name, part in by_name.items()}
    if any(scored.get(part.name) != part.sha256 for part in rollouts.parts):
        return None
    found: dict[str, list[Score]] = {}
    for part, first in rollouts.first_groups():
        index = read_index(directory.rollouts / part.name, part)
        scores = {score.trajectory_id: score for score in read_scores(directory.scores / part.name, by_name[part.name])}
        rows = sorted(zip(index.group_ids, index.chains, index.ids, strict=True))
        for group_id, _, trajectory_id in rows:
            if group_id in first:
                found.setdefault(group_id, []).append(scores[trajectory_id])
    return found
