"""What the rest of the system sees of MLflow: one tracker per training run, which never waits and never fails it.

    Tracker.log_*  ──append──►  <run>/tracking/outbox.jsonl  ──sender's thread──►  MLflow

Every method writes one event to the run directory, in about a millisecond, and returns. A server that is down, slow or
wrong costs the run nothing: events wait in the run directory, over the end of the process if need be, and go out in
order when the server is back, or when the run is started again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from agentfly_lib.configs.run import TrackingConfig
from agentfly_lib.tracking.metrics import NONFINITE_COUNT, NameTable, finite_metrics
from agentfly_lib.tracking.outbox import Outbox
from agentfly_lib.tracking.run_identity import RunIdentity
from agentfly_lib.tracking.sender import Backoff, Sender, Sink
from agentfly_lib.tracking.spans import trajectory_row, trajectory_spans
from agentfly_lib.types import Problem, Trajectory

__all__ = ["RunStatus", "Tracker", "tracking_uri"]

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

_logger = logging.getLogger(__name__)
_MAX_PARAM_LENGTH = 6000
_MAX_TAG_LENGTH = 8000
_MAX_CELL_LENGTH = 20_000


def tracking_uri(config: TrackingConfig, root: Path) -> str:
    """Where MLflow is: the config's, else `MLFLOW_TRACKING_URI`, else SQLite at `<root>/mlflow.db`.

    Never a store in the current directory, which is what MLflow itself would take.
    """
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(root / 'mlflow.db').resolve()}"


class Tracker:
    """The run's numbers, tables, files and traces, on their way to one MLflow run. Safe to use from any thread."""

    def __init__(self, outbox: Outbox, sender: Sender, *, adds: bool = False) -> None:
        """Use `Tracker.open`."""
        self._adds = adds
        self._outbox = outbox
        self._sender = sender
        self._names = NameTable()
        self._param_names = NameTable()
        self._nonfinite = 0
        self._lost = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        run_dir: Path,
        config: TrackingConfig,
        *,
        run_name: str,
        root: Path,
        backoff: Backoff | None = None,
        adds: bool = False,
    ) -> Tracker:
        """Track the run in `run_dir`: a new MLflow run the first time, the same one ever after.

        With `adds`, something is added to a run that is not going on: it neither starts nor ends.

        Returns at once; MLflow is loaded, and its server asked, in the background, where what an earlier process could
        not deliver goes first. Raises `RunLockedError` if a living tracker has this run directory.
        """
        directory = run_dir / "tracking"
        outbox = Outbox(directory)
        identity = RunIdentity(directory)
        uri = tracking_uri(config, root)

        def connect() -> Sink:
            from agentfly_lib.tracking.mlflow_sink import MlflowSink

            root.mkdir(parents=True, exist_ok=True)
            return MlflowSink(
                uri,
                experiment=config.experiment,
                run_name=run_name,
                artifacts=root / "mlartifacts",
                identity=identity,
            )

        sender = Sender(outbox, connect, refused_file=directory / "refused.jsonl", backoff=backoff)
        tracker = cls(outbox, sender, adds=adds)
        sender.start()
        if not adds:
            tracker._put("start", {})
        return tracker

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish("FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Parameters of the run, as text of at most 6,000 characters. A parameter once logged keeps its value."""
        values = {
            self._param_names.clean(name): _text(value)[:_MAX_PARAM_LENGTH] for name, value in sorted(params.items())
        }
        if values:
            self._put("params", {"values": values})

    def log_config(self, text: str, name: str = "config.toml") -> None:
        """The resolved config, as an artifact."""
        self._put("text", {"text": text, "artifact": name})

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step, named `area/name/stat`. Names that MLflow would refuse are cleaned (`metrics.NameTable`).

        Values that are not finite are left out, named in a warning, and counted in `tracking/nonfinite/count`.
        """
        finite = finite_metrics(metrics)
        values = self._names.rename(finite.values)
        if finite.nonfinite:
            self._nonfinite += len(finite.nonfinite)
            values[NONFINITE_COUNT] = float(self._nonfinite)
            _logger.warning("step %d: not finite, so not logged: %s", step, ", ".join(finite.nonfinite))
        if values:
            self._put("metrics", {"step": step, "values": values})

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table, as the artifact `<name>.json` that MLflow's page shows; the same name again replaces it."""
        columns = list(dict.fromkeys(column for row in rows for column in row))
        data = [[_cell(row.get(column)) for column in columns] for row in rows]
        self._put("table", {"columns": columns, "rows": data, "artifact": f"{name}.json"})

    def log_file(self, path: Path, artifact_path: str | None = None) -> None:
        """A file, as an artifact in the folder `artifact_path`. It is read when it is delivered, so leave it there."""
        self._put("file", {"path": str(path.resolve()), "folder": artifact_path})

    def log_figure(self, path: Path) -> None:
        """A picture file, in the folder `figures`."""
        self.log_file(path, "figures")

    def log_trajectories(self, step: int, trajectories: Iterable[tuple[Trajectory, Problem]]) -> None:
        """Trajectories to read: the table `trajectories/<step>`, and a trace each (chain > turn > tool call)."""
        pairs = list(trajectories)
        rows = [trajectory_row(trajectory, problem, step=step) for trajectory, problem in pairs]
        self.log_table(f"trajectories/{step:06d}", rows)
        now = time.time_ns()
        for trajectory, problem in pairs:
            spans = [dict(span) for span in trajectory_spans(trajectory, problem, end_ns=now)]
            tags = {"agentfly.step": str(step), "agentfly.trajectory": trajectory.id}
            if trajectory.reward is not None:
                tags["agentfly.reward"] = f"{trajectory.reward:g}"
            self._put("trace", {"name": f"step {step}", "spans": _plain(spans), "tags": tags})

    def log_checkpoint(self, path: Path, *, version: int, digest: str) -> None:
        """A checkpoint by reference: where it is and the hash that proves it, not the weights."""
        reference = {"path": str(path.resolve()), "policy_version": version, "digest": digest}
        self._put("text", {"text": json.dumps(reference, indent=1), "artifact": f"checkpoints/{version:06d}.json"})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Tags of the run, as text; see `provenance.provenance_tags` for where it came from."""
        if tags:
            self._put("tags", {"values": {name: _text(value)[:_MAX_TAG_LENGTH] for name, value in tags.items()}})

    def pending(self) -> int:
        """Events that MLflow has not got yet."""
        return self._outbox.pending()

    def finish(self, status: RunStatus = "FINISHED", *, timeout: float = 30.0) -> int:
        """End the MLflow run, deliver what is left for at most `timeout` seconds, and close.

        Returns how many events could not be delivered; they are kept in the run directory and go out when the run is
        opened again. Calling it again does nothing.
        """
        if self._closed:
            return self.pending()
        if not self._adds:
            self._put("finish", {"status": status})
        self._closed = True
        self._sender.close(timeout)
        left = self.pending()
        if left:
            _logger.warning(
                "%d tracking events are kept in the run directory, to be sent when the run is resumed", left
            )
        if self._lost:
            _logger.warning("%d tracking events are lost: the run directory could not be written", self._lost)
        self._outbox.close()
        return left

    def _put(self, kind: str, payload: dict[str, Any]) -> None:
        """Queue an event. A disk that refuses costs the event, not the run."""
        if self._closed:
            _logger.warning("an event of kind %r came after the end of tracking and is not logged", kind)
            return
        try:
            self._outbox.append(kind, payload)
        except OSError as error:
            if not self._lost:
                _logger.warning("tracking events are lost, the run goes on: %s", error)
            self._lost += 1
            return
        self._sender.wake()


def _text(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _cell(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(plain, (dict, list)):
        plain = json.dumps(plain)
    return plain[:_MAX_CELL_LENGTH] if isinstance(plain, str) else plain


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it; what is not finite becomes its name, what is unknown its text."""
    match value:
        case Enum():
            return _plain(value.value)
        case bool() | int() | str() | None:
            return value
        case float():
            return value if np.isfinite(value) else str(value)
        case np.generic() | np.ndarray():
            return _plain(value.tolist())
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _:
            return str(value)
