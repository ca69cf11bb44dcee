"""The balance of a run: every requested trajectory ends as exactly one of scored, truncated, failed or dropped.

    problems x chains = scored + truncated + failed + dropped

It is counted anew from the part files, each checked against its checksum; the counts that manifests carry are only
compared with the result. A group that is neither on disk nor dropped with a reason, or a part that has no scores, is
pending, and the step does not balance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from agentfly_lib.errors import LedgerError
from agentfly_lib.store.layout import RunDirectory, StepDirectory
from agentfly_lib.store.manifest import RolloutManifest, read_rollout_manifest
from agentfly_lib.store.score import outcome_of
from agentfly_lib.store.scores import ScoreManifest, read_score_manifest, read_scores
from agentfly_lib.store.shards import PartIndex, read_index
from agentfly_lib.types import Outcome

__all__ = ["StepBalance", "run_balance", "step_balance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBalance:
    """Trajectories of one step, by how they ended."""

    step: int
    problems: int
    chains: int
    requested: int
    scored: int
    truncated: int
    failed: int
    dropped: int

    @property
    def pending(self) -> int:
        """Requested trajectories that have not ended (negative if there are more than were requested)."""
        return self.requested - self.scored - self.truncated - self.failed - self.dropped

    @property
    def balanced(self) -> bool:
        return self.pending == 0


def run_balance(run: RunDirectory) -> list[StepBalance]:
    """The balance of every step that was started, in order.

    Raises `ShardError` if a file is missing or damaged, `LedgerError` if manifests and files contradict each other.
    """
    return [step_balance(run.step(step)) for step in run.steps() if run.step(step).rollouts.is_dir()]


def step_balance(directory: StepDirectory) -> StepBalance:
    """The balance of one step or evaluation, counted from its files. Raises as `run_balance`."""
    rollouts = read_rollout_manifest(directory)
    scores = read_score_manifest(directory) if directory.score_manifest.exists() else None
    counts: Counter[Outcome] = Counter()
    scored_parts = {part.name: part for part in scores.parts} if scores else {}
    for part, first in rollouts.first_groups():
        index = read_index(directory.rollouts / part.name, part)
        score_part = scored_parts.get(part.name)
        if score_part is None or score_part.rollouts_sha256 != part.sha256:
            continue
        path = directory.scores / part.name
        found = read_scores(path, score_part)
        outcomes = {score.trajectory_id: (score.reward, score.outcome) for score in found}
        if len(found) != len(outcomes) or outcomes.keys() != set(index.ids):
            raise LedgerError(f"{path} does not have exactly one score for every trajectory of its part")
        counts.update(_outcomes(index, first, outcomes, str(path)))
    counts[Outcome.DROPPED] += len(rollouts.dropped_groups) * rollouts.chains
    if scores is not None:
        _compare(directory, rollouts, scores, counts)
    return StepBalance(
        step=rollouts.step,
        problems=rollouts.problems,
        chains=rollouts.chains,
        requested=rollouts.requested,
        scored=counts[Outcome.SCORED],
        truncated=counts[Outcome.TRUNCATED],
        failed=counts[Outcome.FAILED],
        dropped=counts[Outcome.DROPPED],
    )


def _outcomes(
    index: PartIndex, first: frozenset[str], scores: dict[str, tuple[float | None, Outcome]], where: str
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for identity, group, stop in zip(index.ids, index.group_ids, index.stops, strict=True):
        if group not in first:
            continue
        reward, outcome = scores[identity]
        if outcome is not outcome_of(stop, reward):
            raise LedgerError(
                f"{where}: trajectory {identity} is called {outcome}, but it is {outcome_of(stop, reward)}"
            )
        outcomes.append(outcome)
    return outcomes


def _compare(
    directory: StepDirectory, rollouts: RolloutManifest, scores: ScoreManifest, counts: Counter[Outcome]
) -> None:
    if not (rollouts.complete and scores.complete):
        return
    claimed = {outcome.value: scores.counts.get(outcome, 0) for outcome in Outcome}
    counted = {outcome.value: counts[outcome] for outcome in Outcome}
    if claimed != counted:
        raise LedgerError(f"{directory.score_manifest} claims {claimed}, its part files hold {counted}")
