"""Which MLflow run belongs to a run directory: `tracking/run.json`.

The key is made when the directory is first tracked and goes to MLflow as a tag, so that a run that was created there is
found again even if the process died before it could write the run's id down.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

from agentfly_lib.errors import ShardError
from agentfly_lib.store.atomic import read_json, write_json

__all__ = ["RunIdentity"]

_logger = logging.getLogger(__name__)


class RunIdentity:
    """The key of a run directory, and the id of its MLflow run once there is one."""

    def __init__(self, directory: Path) -> None:
        """Read `run.json` in `directory`, or make it."""
        self._file = directory / "run.json"
        self._key = uuid.uuid4().hex
        self._run_id: str | None = None
        if self._file.exists():
            try:
                content = read_json(self._file)
                self._key, self._run_id = str(content["key"]), content["run_id"]
                return
            except (ShardError, KeyError, TypeError) as error:
                _logger.warning("%s: %s; a new MLflow run is made", self._file, error)
        self._save()

    @property
    def key(self) -> str:
        """Unique to this run directory."""
        return self._key

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; None until the server was reached for the first time."""
        return self._run_id

    def record(self, run_id: str) -> None:
        """Write the MLflow run's id down."""
        if run_id != self._run_id:
            self._run_id = run_id
            self._save()

    def _save(self) -> None:
        write_json(self._file, {"key": self._key, "run_id": self._run_id})
