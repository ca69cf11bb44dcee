"""The same flow against a Prefect server of its own, on GSM8K's real problems, with an MLflow server that is down."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.scored import load_scored_groups

pytestmark = [pytest.mark.stack, pytest.mark.slow]

DATA = Path(os.environ.get("AGENTFLY_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "gsm8k"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def prefect_server(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    home = tmp_path / "server"
    environment = os.environ | {
        "PREFECT_HOME": str(home),
        "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    home.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=2):
                break
        except OSError:
            assert server.poll() is None, "the Prefect server ended"
            assert time.monotonic() < deadline, "the Prefect server did not answer"
            time.sleep(0.2)
    yield f"http://127.0.0.1:{port}/api"
    os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)


@pytest.mark.release
@pytest.mark.skipif(not DATA.is_dir(), reason="GSM8K's files are not here; set AGENTFLY_TEST_DATA to the folder above")
@pytest.mark.timeout(600)
def test_gsm8k_with_servers(agentfly, tmp_path: Path, prefect_server: str) -> None:
    root = tmp_path / "runs"
    command = ["train", "recipes/gsm8k-tiny.toml", "--set", f"run.root={root}"]
    command += ["--set", f"data.train={DATA / 'train.jsonl'}", "--set", f"data.eval={DATA / 'test.jsonl'}"]
    command += ["--set", "tracking.drain_seconds=15", "--set", "data.eval_problems=8"]
    down = {"PREFECT_API_URL": prefect_server, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}"}

    done = agentfly(*command, environment=down)
    assert done.status == 0, done.errors[-4000:]
    run = RunDirectory(root / "gsm8k-tiny")
    for step in (0, 1):
        groups = load_scored_groups(run.step(step))
        assert len(groups) == 8
        for group in groups:
            assert group.problem.columns["solution"]
            assert group.problem.columns["answer"].replace(",", "").lstrip("-").isdigit()
            assert {trajectory.reward for trajectory in group.trajectories} <= {0.0, 1.0}
        assert run.step(step).update_file.exists()
    assert "kept in the run directory" in done.errors + done.output

    request = urllib.request.Request(
        f"{prefect_server}/flow_runs/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert b'"train-gsm8k-tiny"' in answer.read()

    later = agentfly(*command, environment={"PREFECT_API_URL": prefect_server})
    assert later.status == 0, later.errors[-2000:]
    with sqlite3.connect(f"file:{root / 'mlflow.db'}?mode=ro", uri=True) as database:
        steps = database.execute("select distinct step from metrics where key = 'train/reward/mean'").fetchall()
    assert sorted(steps) == [(0,), (1,)]
