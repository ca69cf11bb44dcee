"""What prefect.yaml registers: read, moved to another folder of runs, and not registered twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agentfly_lib.errors import ConfigError
from agentfly_lib.loopback import without_password
from agentfly_lib.serve.registry import read_registry
from agentfly_lib.serve.servers import mlflow_server, prefect_server

REPOSITORY = Path(__file__).resolve().parents[2]


def entry(registry, name: str) -> dict:
    (found,) = [each for each in registry.document["deployments"] if each["name"] == name]
    return found


def test_the_projects_own() -> None:
    registry = read_registry(REPOSITORY, REPOSITORY / "runs")
    assert registry.pool == "agentfly"
    assert registry.queues == {"device": 1}
    assert "run" not in entry(registry, "recipe")["parameters"]["config"]
    assert yaml.safe_load(registry.text) == registry.document


def test_runs_in_another_folder(tmp_path: Path) -> None:
    registry = read_registry(REPOSITORY, tmp_path)
    for each in registry.document["deployments"]:
        if "config" in each.get("parameters", {}):
            assert each["parameters"]["config"]["run"]["root"] == str(tmp_path)
    assert entry(registry, "demo")["parameters"]["config"]["run"]["name"] == "demo-deployed"
    assert entry(registry, "nightly")["parameters"]["checkpoint"] == str(tmp_path / "demo-deployed")
    assert entry(registry, "nightly")["parameters"]["config"]["recipe"] == str(tmp_path / "demo-deployed/config.toml")
    assert entry(registry, "demo")["parameters"]["config"]["recipe"] == "recipes/demo.toml"
    assert entry(registry, "checkpoint")["parameters"]["root"] == str(tmp_path)
    assert "{{" in entry(registry, "checkpoint")["triggers"][0]["parameters"]["checkpoint"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "is not there. Deployments need a clone of the project"),
        ("a: [", "cannot be read"),
        ("deployments: [{name: x}]", "needs a name and a work_pool"),
        ("deployments: 3", "needs a name and a work_pool"),
        (
            "deployments: [{name: x, work_pool: {name: a}}, {name: y, work_pool: {name: b}}]",
            "one worker serves one pool, and the deployments name a, b",
        ),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_registry(tmp_path, tmp_path)
    assert str(tmp_path / "prefect.yaml") in str(refused.value)
    assert expected in str(refused.value)


class TestServers:
    def test_stores_lie_in_the_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MLFLOW_BACKEND_STORE_URI", raising=False)
        command = " ".join(mlflow_server(tmp_path, "127.0.0.1", 5000).command)
        assert f"sqlite:///{tmp_path}/mlflow.db" in command
        assert f"--artifacts-destination {tmp_path}/mlartifacts" in command

    def test_a_store_that_is_named_elsewhere_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "postgresql://me:secret@db/mlflow")
        assert "sqlite" not in " ".join(mlflow_server(tmp_path, "127.0.0.1", 5000).command)

    def test_pages_alone_run_no_schedules(self, tmp_path: Path) -> None:
        assert "--no-services" in prefect_server(tmp_path, "127.0.0.1", 4200, services=False).command
        assert "--no-services" not in prefect_server(tmp_path, "127.0.0.1", 4200, services=True).command

    def test_a_wildcard_is_reached_by_loopback(self, tmp_path: Path) -> None:
        server = prefect_server(tmp_path, "0.0.0.0", 4200, services=True)
        assert server.environment["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
        assert "0.0.0.0" in server.command

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("postgresql+asyncpg://me:se:cret@db:5432/x", "postgresql+asyncpg://me:***@db:5432/x"),
            ("http://127.0.0.1:4200/api", "http://127.0.0.1:4200/api"),
            ("postgresql://me@db/x", "postgresql://me@db/x"),
            ("postgresql://:pw@db/x", "postgresql://:***@db/x"),
        ],
    )
    def test_passwords_are_not_shown(self, url: str, shown: str) -> None:
        assert without_password(url) == shown
