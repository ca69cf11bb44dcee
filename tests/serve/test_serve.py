"""What `agentfly serve` checks, says and leaves, with servers that are well at once."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from filelock import FileLock

from agentfly_lib.errors import ConfigError, UserError
from agentfly_lib.serve import ServeOptions, serve
from agentfly_lib.serve.child import Child
from agentfly_lib.serve.command import served_api
from tests.serve.postgres import free_port

REPOSITORY = Path(__file__).resolve().parents[2]


class FakeKeeper:
    """Starts nothing; notes what it was asked."""

    started: ClassVar[list[Child]] = []
    stopped = 0

    def __init__(self, say: Callable[[str], None]) -> None:
        type(self).started = []

    def __enter__(self) -> FakeKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        type(self).stopped += 1

    def start(self, child: Child) -> None:
        self.started.append(child)

    def wait(self, children: Sequence[str], seconds: float) -> None:
        assert set(children) <= {child.name for child in self.started}

    def wait_until(self, done: Callable[[], bool], what: str, seconds: float) -> None:
        pass

    def watch(self, until: Callable[[], bool]) -> None:
        until()


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "PREFECT_SERVER_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("agentfly_lib.serve.command.Keeper", FakeKeeper)
    monkeypatch.setattr("agentfly_lib.serve.command.register", lambda registry, api, folder: True)
    monkeypatch.setenv("COLUMNS", "200")


def options(root: Path, **changes: object) -> ServeOptions:
    values = {
        "root": root,
        "project": REPOSITORY,
        "host": "127.0.0.1",
        "prefect_port": free_port(),
        "mlflow_port": free_port(),
    }
    return ServeOptions(**(values | changes))  # type: ignore[arg-type]


def names() -> list[str]:
    return [child.name for child in FakeKeeper.started]


def test_servers_then_a_worker_and_a_file_that_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[dict] = []
    chosen = options(tmp_path)

    def while_it_runs() -> bool:
        told.append(json.loads((tmp_path / "serve" / "serve.json").read_text()))
        assert served_api(tmp_path) == f"http://127.0.0.1:{chosen.prefect_port}/api"
        return True

    serve(chosen, until=while_it_runs)
    assert names() == ["Prefect server", "MLflow server", "worker"]
    worker = FakeKeeper.started[-1]
    assert worker.environment["MLFLOW_TRACKING_URI"] == f"http://127.0.0.1:{chosen.mlflow_port}"
    assert told[0]["pid"] == os.getpid()
    assert served_api(tmp_path) is None
    said = capsys.readouterr().out
    assert f" Prefect  http://127.0.0.1:{chosen.prefect_port}\n  MLflow  http://127.0.0.1:{chosen.mlflow_port}" in said
    assert "7 deployments registered" in said
    assert "healthy after " in said
    assert "warning" not in said


def test_beyond_this_machine_is_said_plainly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(options(tmp_path, host="0.0.0.0"))
    said = capsys.readouterr().out
    assert "warning: --host 0.0.0.0: there is no authentication" in said
    assert "run code on this machine as you" in said
    assert "0.0.0.0" in FakeKeeper.started[0].command
    assert FakeKeeper.started[-1].environment["PREFECT_API_URL"].startswith("http://127.0.0.1:")


def test_servers_that_are_named_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://me:secret@prefect:4200/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    monkeypatch.setattr("agentfly_lib.serve.prefect_api.PrefectAPI.healthy", lambda self: True)
    serve(options(tmp_path))
    assert names() == ["worker"]
    assert FakeKeeper.started[0].environment["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    said = capsys.readouterr().out
    assert "the Prefect server is the one that PREFECT_API_URL names: http://me:***@prefect:4200/api" in said
    assert "the MLflow server is the one that MLFLOW_TRACKING_URI names: http://mlflow:5000" in said
    assert "secret" not in said


def test_only_the_servers(tmp_path: Path) -> None:
    serve(options(tmp_path, worker=False, project=tmp_path / "nowhere"))
    assert names() == ["Prefect server", "MLflow server"]


class TestRefusals:
    """Before anything is started."""

    @pytest.fixture(autouse=True)
    def nothing_was(self) -> None:
        FakeKeeper.started = []

    def test_a_taken_port(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port} cannot be used.*--mlflow-port"):
                serve(options(tmp_path, mlflow_port=port))
        assert names() == []

    def test_no_registry(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="name it with --project FOLDER"):
            serve(options(tmp_path, project=tmp_path))
        assert names() == []

    def test_a_named_server_that_does_not_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
        with pytest.raises(UserError, match="no Prefect server answers there; unset it to start one"):
            serve(options(tmp_path))
        assert names() == []

    def test_a_folder_that_is_served_already(self, tmp_path: Path) -> None:
        (tmp_path / "serve").mkdir()
        with FileLock(tmp_path / "serve" / "serve.lock"), pytest.raises(UserError, match="is served already"):
            serve(options(tmp_path))
        assert names() == []


def test_sigterm_is_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, stopped = signal.getsignal(signal.SIGTERM), FakeKeeper.stopped

    def end() -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not arrive")

    serve(options(tmp_path), until=end)
    assert FakeKeeper.stopped == stopped + 1
    assert "stopping" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "serve" / "serve.json").exists()
