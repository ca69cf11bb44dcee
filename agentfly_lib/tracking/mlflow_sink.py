"""Delivers events to MLflow; the only module that imports it.

Import it in the sender's thread: MLflow takes seconds to load. Everything here may be repeated without harm. Metrics
and tags are overwritten by themselves, parameters that the run has are left out, artifacts have names, a trace's id is
made of its event's number, and the run itself is found again by a tag if its id was not yet written down.

    kind      payload
    start     {}                                          the run is (again) running
    metrics   {"step": int, "values": {name: float}}
    params    {"values": {name: str}}
    tags      {"values": {name: str}}
    text      {"text": str, "artifact": path}
    table     {"columns": [...], "rows": [[...]], "artifact": path}
    file      {"path": path on this machine, "folder": path | null}
    trace     {"name": str, "spans": [Span], "tags": {name: str}}
    finish    {"status": "FINISHED" | "FAILED" | "KILLED"}
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import Metric, Param, RunTag, TraceInfo, TraceLocation, TraceState
from mlflow.entities import Span as MlflowSpan
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from agentfly_lib.tracking.outbox import Event
from agentfly_lib.tracking.run_identity import RunIdentity
from agentfly_lib.tracking.sender import EventRefused, SinkUnavailable
from agentfly_lib.tracking.spans import Span

__all__ = ["MlflowSink"]

_logger = logging.getLogger(__name__)
_KEY_TAG = "agentfly.key"
_TABLES_TAG = "mlflow.loggedArtifacts"
"""MLflow's own list of a run's tables; its page compares runs by them."""
_MAX_TAG_LENGTH = 8000
_MAX_METRICS = 500
_MAX_OTHERS = 100
_BATCHED = frozenset({"metrics", "params", "tags"})
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS"})
_MAX_TRIES = 5
"""Tries of an event that is refused although the server is well."""
_PASSING = frozenset({408, 409, 425, 429})
"""Refusals of HTTP that say nothing about what was sent."""
_PREVIEW_LENGTH = 1000


class MlflowSink:
    """One MLflow run. Methods are called from one thread."""

    def __init__(self, uri: str, *, experiment: str, run_name: str, artifacts: Path, identity: RunIdentity) -> None:
        """Nothing is sent yet. `artifacts` is where files go if `uri` is a database and not a server."""
        _fail_fast(uri)
        self._uri = uri
        self._experiment = experiment
        self._run_name = run_name
        self._artifacts = artifacts
        self._identity = identity
        self._client: MlflowClient | None = None
        self._experiment_id = ""
        self._run_id = ""
        self._params: dict[str, str] = {}
        self._tables: list[str] = []
        self._failed: tuple[int, int] = (0, 0)
        self._send: dict[str, Callable[[MlflowClient, Event], None]] = {
            "start": self._start,
            "text": self._text,
            "table": self._table,
            "file": self._file,
            "trace": self._trace,
            "finish": self._finish,
        }

    def deliver(self, events: Sequence[Event]) -> Event:
        """See `Sink`. Metrics, parameters and tags that follow each other go in one request."""
        client = self._connected()
        batch = _leading_batch(events)
        try:
            if batch:
                self._log_batch(client, batch)
                return batch[-1]
            self._other(client, events[0])
            return events[0]
        except EventRefused:
            raise
        except MlflowException as error:
            if error.error_code in _REFUSALS:
                if len(batch) > 1:
                    return self.deliver(batch[:1])
                raise EventRefused(events[0], _one_line(error)) from error
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                self._client = None  # someone removed the run or the experiment; the next try makes them again
            raise self._verdict(events[0], error) from error
        except Exception as error:
            # MLflow lets out whatever its stores raise: SQLAlchemy, requests, urllib3, OSError, ...
            raise self._verdict(events[0], error) from error

    def _verdict(self, event: Event, error: Exception) -> Exception:
        """Is it the server or the event? An event that is refused often while the server answers will never be taken.

        Whatever else fails (a database that is read-only, a store of artifacts that is away) may be well again later.
        """
        reason = f"MLflow at {self._uri}: {_one_line(error)}"
        if not _blames_event(error):
            return SinkUnavailable(reason)
        try:
            if self._client is not None:
                self._client.search_experiments(max_results=1)
        except Exception:  # noqa: BLE001 - the question was whether it answers, and it does not
            return SinkUnavailable(reason)
        sequence, tries = self._failed
        tries = tries + 1 if sequence == event.sequence else 1
        self._failed = (event.sequence, tries)
        return EventRefused(event, reason) if tries >= _MAX_TRIES else SinkUnavailable(reason)

    def _connected(self) -> MlflowClient:
        """The client, with experiment and run at hand. Raises `SinkUnavailable`."""
        if self._client is not None:
            return self._client
        try:
            client = MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)
            self._experiment_id = self._ensure_experiment(client)
            self._run_id = self._ensure_run(client)
        except Exception as error:  # see `deliver`
            raise SinkUnavailable(f"MLflow at {self._uri}: {_one_line(error)}") from error
        self._client = client
        return client

    def _ensure_experiment(self, client: MlflowClient) -> str:
        found = client.get_experiment_by_name(self._experiment)
        if found is not None:
            if found.lifecycle_stage != "active":
                raise MlflowException(
                    f"experiment {self._experiment!r} is deleted; restore it, or set tracking.experiment to another"
                )
            return found.experiment_id
        location = None if _is_server(self._uri) else self._artifacts.resolve().as_uri()
        return client.create_experiment(self._experiment, artifact_location=location)

    def _ensure_run(self, client: MlflowClient) -> str:
        run = None
        if self._identity.run_id is not None:
            try:
                run = client.get_run(self._identity.run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        if run is None:
            query = f"tags.`{_KEY_TAG}` = '{self._identity.key}'"
            run = next(iter(client.search_runs([self._experiment_id], filter_string=query, max_results=1)), None)
        if run is None or run.info.lifecycle_stage != "active":
            tags = {_KEY_TAG: self._identity.key}
            run = client.create_run(self._experiment_id, run_name=self._run_name, tags=tags)
            _logger.info("MLflow run %s at %s", run.info.run_id, self._uri)
        self._experiment_id = run.info.experiment_id
        self._params = dict(run.data.params)
        self._tables = [table["path"] for table in json.loads(run.data.tags.get(_TABLES_TAG, "[]"))]
        self._identity.record(run.info.run_id)
        return run.info.run_id

    def _log_batch(self, client: MlflowClient, events: Sequence[Event]) -> None:
        metrics: list[Metric] = []
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        for event in events:
            values: dict[str, Any] = event.payload["values"]
            match event.kind:
                case "metrics":
                    step = event.payload["step"]
                    metrics += [Metric(name, value, event.time_ms, step) for name, value in values.items()]
                case "params":
                    params |= self._new_params(values)
                case _:
                    tags |= values
        new_params = [Param(name, value) for name, value in params.items()]
        new_tags = [RunTag(name, value) for name, value in tags.items()]
        requests = max(_chunks(metrics, _MAX_METRICS), _chunks(new_params, _MAX_OTHERS), _chunks(new_tags, _MAX_OTHERS))
        for index in range(requests):
            client.log_batch(
                self._run_id,
                metrics=metrics[index * _MAX_METRICS : (index + 1) * _MAX_METRICS],
                params=new_params[index * _MAX_OTHERS : (index + 1) * _MAX_OTHERS],
                tags=new_tags[index * _MAX_OTHERS : (index + 1) * _MAX_OTHERS],
                synchronous=True,
            )
        self._params |= params

    def _new_params(self, values: dict[str, str]) -> dict[str, str]:
        """Parameters never change in MLflow: those that the run has stay as they are."""
        changed = [name for name, value in values.items() if self._params.get(name, value) != value]
        if changed:
            _logger.warning("MLflow keeps the first value of these parameters: %s", ", ".join(sorted(changed)))
        return {name: value for name, value in values.items() if name not in self._params}

    def _other(self, client: MlflowClient, event: Event) -> None:
        send = self._send.get(event.kind)
        if send is None:
            raise EventRefused(event, f"unknown kind {event.kind!r}")
        send(client, event)

    def _start(self, client: MlflowClient, event: Event) -> None:
        client.update_run(self._run_id, status="RUNNING", name=self._run_name)

    def _finish(self, client: MlflowClient, event: Event) -> None:
        client.set_terminated(self._run_id, status=event.payload["status"], end_time=event.time_ms)

    def _text(self, client: MlflowClient, event: Event) -> None:
        client.log_text(self._run_id, event.payload["text"], event.payload["artifact"])

    def _file(self, client: MlflowClient, event: Event) -> None:
        path = Path(event.payload["path"])
        if not path.is_file():
            raise EventRefused(event, f"{path} is gone")
        client.log_artifact(self._run_id, str(path), event.payload["folder"])

    def _table(self, client: MlflowClient, event: Event) -> None:
        artifact = event.payload["artifact"]
        table = {"columns": event.payload["columns"], "data": event.payload["rows"]}
        client.log_text(self._run_id, json.dumps(table), artifact)
        if artifact in self._tables:
            return
        tables = [*self._tables, artifact]
        while len(tag := json.dumps([{"path": path, "type": "table"} for path in tables])) > _MAX_TAG_LENGTH:
            tables.pop(0)
        client.set_tag(self._run_id, _TABLES_TAG, tag)
        self._tables = tables  # now: the next try must set the tag if this one could not

    def _trace(self, client: MlflowClient, event: Event) -> None:
        spans: list[Span] = event.payload["spans"]
        chain = spans[0]
        trace_hex = hashlib.sha256(f"{self._identity.key}/{event.sequence}".encode()).hexdigest()[:32]
        trace_id = f"tr-{trace_hex}"
        store = TracingClient(self._uri)
        store.start_trace(
            TraceInfo(
                trace_id=trace_id,
                trace_location=TraceLocation.from_experiment_id(self._experiment_id),
                request_time=chain["start_ns"] // 1_000_000,
                execution_duration=(chain["end_ns"] - chain["start_ns"]) // 1_000_000,
                state=TraceState.ERROR if chain["error"] else TraceState.OK,
                request_preview=_preview(chain["inputs"]),
                response_preview=_preview(chain["outputs"]),
                trace_metadata={"mlflow.sourceRun": self._run_id},
                tags={"mlflow.traceName": event.payload["name"], **event.payload["tags"]},
            )
        )
        store.log_spans(self._experiment_id, [_mlflow_span(span, index, trace_id) for index, span in enumerate(spans)])


def _blames_event(error: Exception) -> bool:
    """Whether an error is about what was sent."""
    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
    else:  # of `requests`, when artifacts are sent
        status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in _PASSING
    return isinstance(error, TypeError | ValueError | LookupError | AttributeError) and not isinstance(error, OSError)


def _mlflow_span(span: Span, index: int, trace_id: str) -> MlflowSpan:
    attributes = {
        "mlflow.traceRequestId": trace_id,
        "mlflow.spanType": span["kind"],
        "mlflow.spanInputs": span["inputs"],
        "mlflow.spanOutputs": span["outputs"],
        **span["attributes"],
    }
    return MlflowSpan.from_dict(
        {
            "trace_id": trace_id,
            "span_id": _span_id(index),
            "parent_span_id": None if span["parent"] is None else _span_id(span["parent"]),
            "name": span["name"],
            "start_time_unix_nano": span["start_ns"],
            "end_time_unix_nano": span["end_ns"],
            "status": {"code": "ERROR" if span["error"] else "OK", "message": span["error"] or ""},
            "attributes": {name: json.dumps(value) for name, value in attributes.items()},
            "events": [],
        }
    )


def _span_id(index: int) -> str:
    return f"{index + 1:016x}"


def _preview(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_PREVIEW_LENGTH]


def _leading_batch(events: Sequence[Event]) -> list[Event]:
    """The events that one request can take: as many batched kinds as the list starts with."""
    batch: list[Event] = []
    for event in events:
        if event.kind not in _BATCHED:
            break
        batch.append(event)
    return batch


def _chunks(values: Sequence[object], size: int) -> int:
    return -(-len(values) // size)


def _is_server(uri: str) -> bool:
    return urlsplit(uri).scheme in {"http", "https", "databricks"}


def _fail_fast(uri: str) -> None:
    """MLflow's HTTP client waits two minutes and tries eight times; our outbox is the better place to wait.

    The environment is the only way to tell it. A user's own settings stand.
    """
    if not _is_server(uri):
        return
    loopback = urlsplit(uri).hostname in {"localhost", "127.0.0.1", "::1"}
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10" if loopback else "30")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0" if loopback else "1")


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
