"""Small values that pass between tasks: where a result lies and how to recognise it, never the result itself."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

__all__ = [
    "CheckpointRef",
    "DatasetRef",
    "EngineRef",
    "EvaluationRef",
    "ImitatedRef",
    "LearnerRef",
    "ModelRef",
    "ScoresRef",
    "ShardsRef",
    "StepReport",
]


class _Ref(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelRef(_Ref):
    """A model directory on disk: config, safetensors weights, tokenizer, chat template."""

    path: Path
    fingerprint: str
    """Hash over names and contents of its files."""


class DatasetRef(_Ref):
    """A prepared dataset: `train.arrow` and `eval.arrow` in a folder named after its fingerprint."""

    path: Path
    fingerprint: str
    train_rows: int
    eval_rows: int
    columns: tuple[str, ...]
    """Free columns that every row has; tools and rewards may ask for them by name."""
    duplicates: int = 0
    """Held-out questions that also stood in the training split (and were removed from it)."""


class ImitatedRef(_Ref):
    """The trajectories that a fine-tuning imitates."""

    fingerprint: str
    """Hash over their runs' order, ids, tokens and rewards."""
    trajectories: int


class ShardsRef(_Ref):
    """The rollouts of one step (or one evaluation): a directory of parts with a manifest."""

    path: Path
    """Directory that holds `rollouts/` and `scores/`."""
    step: int
    policy_version: int
    complete: bool
    parts: int
    trajectories: int


class ScoresRef(_Ref):
    """Rewards beside the shards."""

    path: Path
    step: int
    reward: str
    mean: float | None = None
    """Mean reward of what could be scored, where it was asked for."""
    trajectories: int
    scored: int
    truncated: int
    failed: int
    dropped: int


class CheckpointRef(_Ref):
    """A complete checkpoint."""

    path: Path
    policy_version: int
    digest: str
    """Hash over the checkpoint's manifest, which holds the hash of every file."""


class EngineRef(_Ref):
    """Named Ray actors that generate, and the version they serve."""

    names: tuple[str, ...]
    namespace: str
    policy_version: int


class LearnerRef(_Ref):
    """Named Ray actors that train, rank 0 first, and the version they hold."""

    names: tuple[str, ...]
    namespace: str
    policy_version: int


class StepReport(_Ref):
    """What an update did. `update.json` in the step's directory."""

    step: int
    policy_version: int
    """Version that the update produced: step + 1."""
    metrics: dict[str, float]
    """Finite values only, named `area/name/stat`."""
    seconds: dict[str, float]
    """Wall seconds by part: `load`, `old_logprobs`, `forward_backward`, `optimizer`, ..."""
    weights_digest: str
    """Hash of the canary's log-probs under the new weights: a replay that differs is noticed."""
    reward: str | None = None
    """Whose scores it trained on, as their manifest names it."""


class EvaluationRef(_Ref):
    """One evaluation of one policy version: `report.json` in its directory."""

    path: Path
    policy_version: int
    metrics: dict[str, float]
