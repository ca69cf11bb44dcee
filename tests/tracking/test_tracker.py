"""What reaches MLflow, in a real SQLite store; and what the run pays for it, which is nothing but an append."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from agentfly_lib.configs.run import TrackingConfig
from agentfly_lib.tracking.outbox import Event, Outbox
from agentfly_lib.tracking.run_identity import RunIdentity
from agentfly_lib.tracking.sender import EventRefused, SinkUnavailable
from agentfly_lib.tracking.tracker import Tracker, tracking_uri
from agentfly_lib.types import Problem, Trajectory

DEADLINE = 120.0


def open_tracker(root: Path, name: str = "demo", **config: str) -> Tracker:
    return Tracker.open(root / name, TrackingConfig(**config), run_name=name, root=root)  # pyright: ignore[reportArgumentType]


def mlflow_client(root: Path):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{root / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def only_run(client, experiment: str = "agentfly"):
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len(runs) == 1
    return runs[0]


def artifact(client, run_id: str, path: str, into: Path) -> str:
    return Path(client.download_artifacts(run_id, path, str(into))).read_text()


def test_the_address_is_always_explicit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(TrackingConfig(), tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert tracking_uri(TrackingConfig(), tmp_path) == "http://server:5000"
    assert tracking_uri(TrackingConfig(uri="http://mine:1"), tmp_path) == "http://mine:1"


class Color(Enum):
    RED = "red"


def test_a_whole_run_as_mlflow_shows_it(bare_root: Path, tmp_path: Path, trajectory: Trajectory, problem: Problem):
    figure = tmp_path / "curve.png"
    figure.write_bytes(b"picture")
    with open_tracker(bare_root) as tracker:
        tracker.set_tags({"host": "here", "gpus": 0})
        tracker.log_params({"lr": 1e-4, "color": Color.RED, "long": "x" * 7000, "betas": (0.9, 0.95), "none": None})
        tracker.log_config('run.name = "demo"\n')
        for step in range(3):
            tracker.log_metrics(step, {"train/reward/mean": step / 2, "train/pass@1/mean": 0.25})
        tracker.log_metrics(3, {"train/loss/mean": math.nan, "train/kl/mean": math.inf, "train/reward/mean": 1.5})
        tracker.log_table(
            "evaluation", [{"version": 0, "reward": 0.1}, {"version": 10, "reward": np.float32(0.5), "x": math.nan}]
        )
        tracker.log_figure(figure)
        tracker.log_checkpoint(tmp_path / "checkpoints" / "3", version=3, digest="abc")
        tracker.log_trajectories(3, [(trajectory, problem)])

    client = mlflow_client(bare_root)
    run = only_run(client)
    assert run.info.run_name == "demo"
    assert run.info.status == "FINISHED"
    assert run.data.tags["host"] == "here"
    assert run.data.params["lr"] == "0.0001"
    assert run.data.params["color"] == "red"
    assert run.data.params["betas"] == "[0.9, 0.95]"
    assert len(run.data.params["long"]) == 6000
    history = client.get_metric_history(run.info.run_id, "train/reward/mean")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]
    assert run.data.metrics["train/pass_at_1/mean"] == 0.25
    assert run.data.metrics["tracking/nonfinite/count"] == 2.0
    assert not {"train/loss/mean", "train/kl/mean"} & set(run.data.metrics)

    run_id = run.info.run_id
    assert artifact(client, run_id, "config.toml", tmp_path) == 'run.name = "demo"\n'
    table = json.loads(artifact(client, run_id, "evaluation.json", tmp_path))
    assert table == {"columns": ["version", "reward", "x"], "data": [[0, 0.1, None], [10, 0.5, "nan"]]}
    assert artifact(client, run_id, "figures/curve.png", tmp_path) == "picture"
    reference = json.loads(artifact(client, run_id, "checkpoints/000003.json", tmp_path))
    assert reference == {"path": str(tmp_path / "checkpoints" / "3"), "policy_version": 3, "digest": "abc"}
    shown = json.loads(artifact(client, run_id, "trajectories/000003.json", tmp_path))
    assert shown["data"][0][shown["columns"].index("final_response")] == "The answer is \\boxed{35}"
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "evaluation.json", "type": "table"},
        {"path": "trajectories/000003.json", "type": "table"},
    ]

    (trace,) = client.search_traces(locations=[run.info.experiment_id], run_id=run_id)
    names = {span.span_id: span.name for span in trace.data.spans}
    tree = {span.name: names.get(span.parent_id) for span in trace.data.spans}
    assert tree == {"chain": None, "turn 1": "chain", "calculator": "turn 1", "clock": "turn 1", "turn 2": "chain"}
    spans = {span.name: span for span in trace.data.spans}
    assert spans["calculator"].outputs == "35"
    assert spans["chain"].inputs == {"messages": [{"role": "user", "content": "What is 7 times 5?"}]}
    assert spans["chain"].end_time_ns - spans["chain"].start_time_ns == 1_750_000_000
    assert trace.info.tags["agentfly.step"] == "3"
    assert trace.info.state.value == "OK"

    assert list(Path.cwd().iterdir()) == [], "nothing may be written to the current directory"


def test_a_resumed_run_is_the_same_mlflow_run(root: Path):
    with open_tracker(root) as tracker:
        tracker.log_params({"lr": 1})
        tracker.log_metrics(0, {"train/reward/mean": 0.0})
    with open_tracker(root) as tracker:
        tracker.log_params({"lr": 2, "new": 3})
        tracker.log_metrics(1, {"train/reward/mean": 1.0})

    client = mlflow_client(root)
    run = only_run(client)
    assert run.data.params == {"lr": "1", "new": "3"}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train/reward/mean")] == [0, 1]
    assert run.info.status == "FINISHED"


def test_what_a_killed_process_left_is_sent_by_the_next_and_delivering_twice_changes_nothing(
    root: Path, trajectory: Trajectory, problem: Problem
):
    with open_tracker(root) as tracker:
        tracker.log_metrics(0, {"train/reward/mean": 0.5})
        tracker.log_trajectories(0, [(trajectory, problem)])
    tracking = root / "demo" / "tracking"
    (tracking / "acknowledged.json").unlink()  # as if it had died before it could acknowledge anything
    run_file = json.loads((tracking / "run.json").read_text())
    (tracking / "run.json").write_text(json.dumps({**run_file, "run_id": None}))  # ... or write the run's id down
    outbox = Outbox(tracking)
    outbox.append("metrics", {"step": 1, "values": {"train/reward/mean": 0.75}})
    outbox.close()

    with open_tracker(root):
        pass

    client = mlflow_client(root)
    run = only_run(client)
    history = client.get_metric_history(run.info.run_id, "train/reward/mean")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.5), (1, 0.75)]
    assert len(client.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id)) == 1


def test_a_run_that_someone_deleted_is_made_again(root: Path):
    with open_tracker(root) as tracker:
        tracker.log_metrics(0, {"train/reward/mean": 0.5})
    client = mlflow_client(root)
    client.delete_run(only_run(client).info.run_id)

    with open_tracker(root) as tracker:
        tracker.log_metrics(1, {"train/reward/mean": 0.75})

    assert only_run(client).data.metrics["train/reward/mean"] == 0.75


def test_a_failing_run_is_failed_in_mlflow(root: Path):
    with pytest.raises(ZeroDivisionError), open_tracker(root):
        raise ZeroDivisionError

    assert only_run(mlflow_client(root)).info.status == "FAILED"


def test_a_file_that_is_gone_is_set_aside_and_the_rest_arrives(root: Path, tmp_path: Path):
    with open_tracker(root) as tracker:
        tracker.log_file(tmp_path / "missing.png")
        tracker.log_metrics(0, {"train/reward/mean": 0.5})

    assert only_run(mlflow_client(root)).data.metrics == {"train/reward/mean": 0.5}
    refused = json.loads((root / "demo" / "tracking" / "refused.jsonl").read_text())
    assert "is gone" in refused["reason"]


def test_one_bad_event_in_a_batch_does_not_take_the_others_with_it(root: Path):
    tracking = root / "demo" / "tracking"
    outbox = Outbox(tracking)
    outbox.append("metrics", {"step": 0, "values": {"good/a/mean": 1.0}})
    outbox.append("metrics", {"step": 0, "values": {"bad[name]": 1.0}})
    outbox.append("metrics", {"step": 0, "values": {"good/b/mean": 2.0}})
    outbox.close()

    with open_tracker(root):
        pass

    assert only_run(mlflow_client(root)).data.metrics == {"good/a/mean": 1.0, "good/b/mean": 2.0}
    assert json.loads((tracking / "refused.jsonl").read_text())["sequence"] == 2


class Refusing:
    """An MLflow that answers, and takes nothing."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def search_experiments(self, max_results: int) -> None:
        """It is there."""

    def log_text(self, *_: object) -> None:
        raise self.error

    set_tag = log_text


@pytest.fixture
def deliver(tmp_path: Path):
    """Tries of one event at a server that refuses it with an error; returns the verdicts."""
    from agentfly_lib.tracking.mlflow_sink import MlflowSink

    event = Event(sequence=1, time_ms=0, kind="text", payload={"text": "x", "artifact": "x"}, end=1)

    def verdicts(error: Exception) -> list[type[Exception]]:
        sink = MlflowSink("x", experiment="e", run_name="r", artifacts=tmp_path, identity=RunIdentity(tmp_path))
        sink._client = Refusing(error)  # pyright: ignore[reportAttributeAccessIssue]
        found = []
        for _ in range(7):
            with pytest.raises((SinkUnavailable, EventRefused)) as raised:
                sink.deliver([event])
            found.append(raised.type)
        return found

    return verdicts


def test_a_server_that_cannot_write_may_write_later(deliver):
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, TEMPORARILY_UNAVAILABLE
    from requests import HTTPError, Response

    full = Response()
    full.status_code = 507
    for error in (
        MlflowException("attempt to write a readonly database", error_code=TEMPORARILY_UNAVAILABLE),
        MlflowException("disk I/O error"),  # INTERNAL_ERROR
        HTTPError("507 Insufficient Storage", response=full),
        ConnectionError("the store of artifacts is away"),
    ):
        assert set(deliver(error)) == {SinkUnavailable}, error
    too_large = Response()
    too_large.status_code = 413
    refused = MlflowException("not allowed", error_code=PERMISSION_DENIED)
    for error in (refused, HTTPError("413 Payload Too Large", response=too_large), TypeError("bug")):
        assert deliver(error)[:5] == [*[SinkUnavailable] * 4, EventRefused], error


def test_a_table_whose_tag_could_not_be_set_gets_it_at_the_next_try(tmp_path: Path):
    from agentfly_lib.tracking.mlflow_sink import MlflowSink

    sink = MlflowSink("x", experiment="e", run_name="r", artifacts=tmp_path, identity=RunIdentity(tmp_path))
    client = Refusing(ConnectionError("gone"))
    client.log_text = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
    sink._client = client  # pyright: ignore[reportAttributeAccessIssue]
    payload = {"columns": [], "rows": [], "artifact": "t.json"}
    event = Event(sequence=1, time_ms=0, kind="table", payload=payload, end=1)
    with pytest.raises(SinkUnavailable):
        sink.deliver([event])
    tags: list[str] = []
    client.set_tag = lambda _, __, tag: tags.append(tag)  # pyright: ignore[reportAttributeAccessIssue]
    assert sink.deliver([event]) == event
    assert json.loads(tags[0]) == [{"path": "t.json", "type": "table"}]


def test_more_than_one_request_can_hold(root: Path):
    values = {f"train/m{index}/mean": float(index) for index in range(1500)}
    with open_tracker(root) as tracker:
        tracker.log_metrics(0, values)
        tracker.log_params({f"p{index}": index for index in range(250)})

    run = only_run(mlflow_client(root))
    assert run.data.metrics == values
    assert len(run.data.params) == 250


def test_a_server_that_is_not_there_costs_nothing_and_loses_nothing(root: Path, caplog: pytest.LogCaptureFixture):
    tracker = open_tracker(root, uri="http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING):
        for step in range(20):
            tracker.log_metrics(step, {"train/reward/mean": 0.5})
        left = tracker.finish(timeout=0.5)

    assert left == 22  # start, twenty steps, finish
    assert "kept" in caplog.text

    with open_tracker(root):  # this time with the SQLite store
        pass
    client = mlflow_client(root)
    assert len(client.get_metric_history(only_run(client).info.run_id, "train/reward/mean")) == 20


def test_a_disk_that_is_full_costs_the_event_and_not_the_run(root: Path, monkeypatch: pytest.MonkeyPatch):
    tracker = open_tracker(root)

    def full(self: Outbox, kind: str, payload: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "append", full)
        tracker.log_metrics(0, {"train/reward/mean": 0.5})
    tracker.log_metrics(1, {"train/reward/mean": 0.75})
    tracker.finish(timeout=DEADLINE)

    client = mlflow_client(root)
    assert [m.step for m in client.get_metric_history(only_run(client).info.run_id, "train/reward/mean")] == [1]


def test_logging_a_step_costs_the_caller_about_a_millisecond_and_imports_nothing(root: Path):
    """Measured in the caller's CPU time, because the machine may be busy; mlflow loads in another thread meanwhile."""
    tracker = open_tracker(root)
    metrics = {f"train/metric{index}/mean": float(index) for index in range(40)}
    costs = []
    for step in range(50):
        start = time.thread_time()
        tracker.log_metrics(step, metrics)
        costs.append(time.thread_time() - start)
    tracker.finish(timeout=DEADLINE)

    assert sorted(costs)[25] < 0.002


def test_finishing_twice_and_logging_after_the_end_are_harmless(root: Path):
    tracker = open_tracker(root)
    assert tracker.finish(timeout=DEADLINE) == 0
    assert tracker.finish() == 0
    tracker.log_metrics(0, {"train/reward/mean": 0.5})
    assert os.listdir(root / "demo" / "tracking")
