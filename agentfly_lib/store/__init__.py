"""The run directory: what is on disk is the truth, and it is always whole."""

from agentfly_lib.store.layout import RunDirectory, StepDirectory
from agentfly_lib.store.ledger import StepBalance, run_balance, step_balance
from agentfly_lib.store.lock import RunLock
from agentfly_lib.store.manifest import RolloutManifest, RolloutStore, iter_groups, read_rollout_manifest
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.store.scores import (
    Score,
    ScoreManifest,
    ScoreStore,
    outcome_of,
    read_score_manifest,
    read_scores,
    write_scores,
)
from agentfly_lib.store.shards import PartInfo, read_part, write_part

__all__ = [
    "PartInfo",
    "RolloutManifest",
    "RolloutStore",
    "RunDirectory",
    "RunLock",
    "Score",
    "ScoreManifest",
    "ScoreStore",
    "StepBalance",
    "StepDirectory",
    "iter_groups",
    "load_scored_groups",
    "outcome_of",
    "read_part",
    "read_rollout_manifest",
    "read_score_manifest",
    "read_scores",
    "run_balance",
    "step_balance",
    "write_part",
    "write_scores",
]
