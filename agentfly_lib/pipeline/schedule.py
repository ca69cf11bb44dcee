"""What of a run is done, and what is due: read from its directory, by the rules of its config."""

from __future__ import annotations

from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.evaluation.report import EvaluationMode
from agentfly_lib.store.layout import RunDirectory

__all__ = ["Schedule"]


class Schedule:
    """Of one run. Nothing is remembered: every question looks at the directory."""

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        self._config = config
        self._directory = directory

    @property
    def evaluation_modes(self) -> tuple[EvaluationMode, ...]:
        """In which an evaluation is made, one after the other."""
        return ("sampled", "greedy") if self._config.evaluation.greedy else ("sampled",)

    def first_open_step(self) -> int:
        """The first step whose update is not recorded; the number of steps if all are."""
        return self._directory.first_open_step(self._config.run.steps)

    def finished(self) -> bool:
        """True if every stage of the run is complete."""
        last = self._config.run.steps
        open_evaluation = any(self.evaluation_due(version) for version in range(last + 1))
        return self.first_open_step() == last and not self.checkpoint_due(last) and not open_evaluation

    def finished_steps(self) -> list[int]:
        """Steps of a run whose every update is recorded.

        Raises `ConfigError` if the run is not finished: it would go on to train on whatever scores are there.
        """
        done, steps = self.first_open_step(), self._config.run.steps
        if done < steps:
            raise ConfigError(
                f"{self._directory.path} is not finished ({done} of {steps} steps); "
                "finish it first (agentfly train), because its updates read the scores that are there"
            )
        return self._directory.steps()

    def checkpoint_due(self, version: int) -> bool:
        """True if a checkpoint of this version is wanted and not there."""
        every, last = self._config.checkpoint.every_steps, self._config.run.steps
        wanted = version > 0 and (version % every == 0 or version == last)
        return wanted and not self._directory.checkpoint(version).exists()

    def checkpoints(self) -> list[int]:
        """Versions that have a checkpoint, ascending."""
        return [
            version for version in range(self._config.run.steps + 1) if self._directory.checkpoint(version).exists()
        ]

    def since_checkpoint(self, version: int) -> int:
        """Updates that a new learner would have to make again to hold this version."""
        return version - max((kept for kept in self.checkpoints() if kept <= version), default=0)

    def evaluation_due(self, version: int) -> bool:
        """True if an evaluation of this version is wanted and not complete."""
        every = self._config.evaluation.every_steps
        wanted = version in (0, self._config.run.steps) or (every > 0 and version % every == 0)
        return wanted and not self._directory.evaluation_metrics(version).exists()
