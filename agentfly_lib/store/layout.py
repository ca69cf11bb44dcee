"""Where everything of a run lies.

    <run>/config.toml                                the resolved recipe
          layout.json                                the version of this layout, and the release that made it
          model.json                                 the starting model: where it is, and its fingerprint
          dataset.json                               the problems, or what is imitated: by fingerprint
          run.id                                     what its Ray actors are found by
          run.lock, run.owner.json                   who is using the directory
          steps/000012/                              a `StepDirectory`
              rollouts/part-00003.arrow, MANIFEST.json
              scores/part-00003.arrow, MANIFEST.json
              learner/tokens.arrow
              update.json
          evaluations/000012/sampled/                a `StepDirectory` too, with report.json
          checkpoints/000012/

These classes only name paths; they touch no disk except to list what is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RunDirectory", "StepDirectory", "check_part_names", "group_id", "part_name"]

_MANIFEST = "MANIFEST.json"
_NUMBER = re.compile(r"\d{6,}")
_PART = re.compile(r"part-\d{5,}\.arrow", re.ASCII)


def part_name(index: int) -> str:
    """File name of a step's part."""
    return f"part-{index:05d}.arrow"


def group_id(step: int, index: int) -> str:
    """`000012-00003`: sorts as the problems of the step are ordered."""
    return f"{step:06d}-{index:05d}"


def check_part_names(names: Iterable[str]) -> None:
    """Raises `ValueError` for a name that `part_name` never gives: a manifest must not lead to another directory."""
    for name in names:
        if not _PART.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a part, such as {part_name(0)}")


@dataclass(frozen=True, slots=True)
class StepDirectory:
    """One collection and what was made of it: a training step, or one evaluation of one policy version."""

    path: Path

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def rollout_manifest(self) -> Path:
        return self.rollouts / _MANIFEST

    @property
    def scores(self) -> Path:
        return self.path / "scores"

    @property
    def score_manifest(self) -> Path:
        return self.scores / _MANIFEST

    @property
    def update_file(self) -> Path:
        """Report of the update that this step's trajectories made."""
        return self.path / "update.json"

    @property
    def learned_file(self) -> Path:
        """What the update saw of every token that it trained on (`learned.py`)."""
        return self.path / "learner" / "tokens.arrow"

    @property
    def metrics_file(self) -> Path:
        """All metrics of a training step, for reports; MLflow has them too."""
        return self.path / "metrics.json"

    @property
    def report_file(self) -> Path:
        """Report of an evaluation."""
        return self.path / "report.json"

    def archived_scores(self, reward: str) -> Path:
        """A free directory for the scores of a reward that is being replaced."""
        base = "scores-" + re.sub(r"[^A-Za-z0-9._-]+", "_", reward)
        candidate, number = self.path / base, 2
        while candidate.exists():
            candidate, number = self.path / f"{base}-{number}", number + 1
        return candidate


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run's directory. `RunDirectory(Path("runs/demo")).step(12).rollouts` is `runs/demo/steps/000012/rollouts`."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.toml"

    @property
    def layout_file(self) -> Path:
        """Which layout this is (`layout_version`)."""
        return self.path / "layout.json"

    @property
    def model_file(self) -> Path:
        """The starting model (`refs.ModelRef`)."""
        return self.path / "model.json"

    @property
    def dataset_file(self) -> Path:
        """What it is trained on (`refs.DatasetRef`, of a fine-tuning `refs.ImitatedRef`)."""
        return self.path / "dataset.json"

    @property
    def curriculum_file(self) -> Path:
        """How the problems went so far, where their order depends on it."""
        return self.path / "curriculum.json"

    @property
    def id_file(self) -> Path:
        """A random id, which tells the run's actors from those of others (`recorded.actors_namespace`)."""
        return self.path / "run.id"

    @property
    def lock_file(self) -> Path:
        return self.path / "run.lock"

    @property
    def owner_file(self) -> Path:
        """Who holds the lock, for the message of the one who is refused."""
        return self.path / "run.owner.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, version: int) -> Path:
        return self.checkpoints / f"{version:06d}"

    def step(self, number: int) -> StepDirectory:
        return StepDirectory(self.path / "steps" / f"{number:06d}")

    def steps(self) -> list[int]:
        """Numbers of the steps that have a directory, ascending."""
        return _numbers(self.path / "steps")

    def first_open_step(self, steps: int) -> int:
        """The first of `steps` steps whose update is not recorded; `steps` if all are."""
        return next((step for step in range(steps) if not self.step(step).update_file.exists()), steps)

    def evaluation(self, version: int, mode: str) -> StepDirectory:
        """Evaluation of a policy version; `mode` is `sampled` or `greedy`."""
        return StepDirectory(self.path / "evaluations" / f"{version:06d}" / mode)

    def evaluation_metrics(self, version: int) -> Path:
        """Metrics of both modes, written when the evaluation is complete and sent."""
        return self.path / "evaluations" / f"{version:06d}" / "metrics.json"

    def evaluations(self) -> list[int]:
        """Policy versions that have an evaluation directory, ascending."""
        return _numbers(self.path / "evaluations")


def _numbers(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted(int(entry.name) for entry in directory.iterdir() if entry.is_dir() and _NUMBER.fullmatch(entry.name))
