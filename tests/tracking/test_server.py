"""A real `mlflow server` on loopback: down at the start, killed and started again in the middle. Nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentfly_lib.configs.run import TrackingConfig
from agentfly_lib.tracking.sender import Backoff
from agentfly_lib.tracking.tracker import Tracker
from agentfly_lib.types import Problem, Trajectory

DEADLINE = 120.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end, pause = time.monotonic() + DEADLINE, threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:.0f} s: {what}"
        pause.wait(0.05)


class Server:
    """`mlflow server` with its own store; the port stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        wait_until(self.answers, f"the server at {self.uri} answers; see {self.folder / 'server.log'}")

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE)
            self.process = None


@pytest.fixture
def server(tmp_path: Path, empty_store: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(empty_store, folder / "server.db")
    made = Server(folder)
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_comes_and_goes(server: Server, bare_root: Path, trajectory: Trajectory, problem: Problem):
    from mlflow.tracking import MlflowClient

    tracker = Tracker.open(
        bare_root / "demo",
        TrackingConfig(uri=server.uri),
        run_name="demo",
        root=bare_root,
        backoff=Backoff(first=0.05, limit=0.5),
    )
    tracker.log_metrics(0, {"train/reward/mean": 0.0})
    assert tracker.pending() == 2, "the server is not there yet"

    server.start()
    wait_until(lambda: tracker.pending() == 0, "what was logged before the server started is delivered")

    server.kill()
    for step in (1, 2, 3):
        tracker.log_metrics(step, {"train/reward/mean": step / 10})
    tracker.log_table("evaluation", [{"reward": 0.5}])
    tracker.log_trajectories(3, [(trajectory, problem)])
    assert tracker.pending() == 6

    server.start()
    tracker.log_metrics(4, {"train/reward/mean": 0.4})
    assert tracker.finish(timeout=DEADLINE) == 0

    client = MlflowClient(tracking_uri=server.uri, registry_uri=server.uri)
    experiment = client.get_experiment_by_name("agentfly")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/reward/mean")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert run.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["evaluation.json", "trajectories"]
    (trace,) = client.search_traces(locations=[experiment.experiment_id], run_id=run.info.run_id)
    assert len(trace.data.spans) == 5
    assert not (bare_root / "mlflow.db").exists()
    assert not (bare_root / "demo" / "tracking" / "refused.jsonl").exists()
