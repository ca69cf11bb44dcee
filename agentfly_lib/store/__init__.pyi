from .layout import RunDirectory, StepDirectory
from .ledger import StepBalance, run_balance, step_balance
from .lock import RunLock
from .manifest import RolloutManifest, RolloutStore, iter_groups, read_rollout_manifest
from .score import Score, outcome_of
from .scored import load_scored_groups
from .scores import (
    ScoreManifest,
    ScoreStore,
    read_score_manifest,
    read_scores,
    write_scores,
)
from .shards import PartInfo, read_part, write_part

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
