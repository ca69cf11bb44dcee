from .layout import RunDirectory as RunDirectory, StepDirectory as StepDirectory
from .ledger import StepBalance as StepBalance, run_balance as run_balance, step_balance as step_balance
from .lock import RunLock as RunLock
from .manifest import (
    RolloutManifest as RolloutManifest,
    RolloutStore as RolloutStore,
    iter_groups as iter_groups,
    read_rollout_manifest as read_rollout_manifest,
)
from .scored import load_scored_groups as load_scored_groups
from .score import Score as Score, outcome_of as outcome_of
from .scores import (
    ScoreManifest as ScoreManifest,
    ScoreStore as ScoreStore,
    read_score_manifest as read_score_manifest,
    read_scores as read_scores,
    write_scores as write_scores,
)
from .shards import PartInfo as PartInfo, read_part as read_part, write_part as write_part
