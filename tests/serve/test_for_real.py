"""`agentfly serve` with both servers on a real PostgreSQL: schedules fire, runs are triggered, cancelled, resumed, and
outlive their server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import tomli_w
import yaml

from agentfly_lib.serve.prefect_api import PrefectAPI
from agentfly_lib.serve.registry import read_registry, register
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.ledger import run_balance
from agentfly_lib.watchdog import processes_marked
from tests.serve.gated_calculator import SECONDS
from tests.serve.postgres import free_port, postgres, postgres_missing

pytestmark = [
    pytest.mark.stack,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(postgres_missing() is not None, reason=str(postgres_missing())),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="the run's sandboxes need bubblewrap"),
]

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = 4
PATIENCE = 400.0
"""Seconds for anything; a busy machine may take its time."""


def until(done: Callable[[], Any], what: str, process: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (result := done()):
        assert time.monotonic() < deadline, what
        assert process is None or process.poll() is None, f"it ended before {what}"
        time.sleep(0.2)
    return result


@dataclass
class Served:
    """A running `agentfly serve`."""

    process: subprocess.Popen[str]
    project: Path
    root: Path
    prefect: str
    mlflow: str
    output: Path
    gate: Path
    """Until this file is there, no run gets beyond step 1."""
    environment: dict[str, str]
    clients: list[subprocess.Popen[str]] = field(default_factory=list)

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        answer = httpx.request(method, f"{self.prefect}/{path}", json=body, timeout=60, trust_env=False)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def flow_runs(self, deployment: str) -> list[dict[str, Any]]:
        return self.ask("flow_runs/filter", {"deployments": {"name": {"any_": [deployment]}}, "sort": "START_TIME_ASC"})

    def state(self, run: str) -> str:
        return self.ask(f"flow_runs/{run}", method="GET")["state"]["name"]

    def train(self, *options: str) -> subprocess.Popen[str]:
        """`agentfly train RECIPE --deploy`, as in another terminal: the server is found by the folder of runs."""
        command = ["train", "recipes/short.toml", "--set", f"run.root={self.root}", "--deploy", *options]
        client = subprocess.Popen(
            [sys.executable, "-m", "agentfly_lib", *command],
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.clients.append(client)
        return client

    def mlflow_status(self) -> list[str]:
        body = {"experiment_ids": [self.experiment()]}
        found = httpx.post(f"{self.mlflow}/api/2.0/mlflow/runs/search", json=body, timeout=60, trust_env=False).json()
        return [run["info"]["status"] for run in found.get("runs", []) if run["info"]["run_name"] == "short"]

    def experiment(self) -> str:
        path = f"{self.mlflow}/api/2.0/mlflow/experiments/get-by-name"
        found = httpx.get(path, params={"experiment_name": "agentfly"}, timeout=60, trust_env=False)
        return found.json()["experiment"]["experiment_id"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone's flows and prefect.yaml, with a recipe of a few small steps and a schedule that is on."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("flows", "tasks", "agentfly_lib", "tests"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "recipes").mkdir()
    for recipe in (REPOSITORY / "recipes").glob("*.toml"):
        (folder / "recipes" / recipe.name).write_bytes(recipe.read_bytes())
    short = tomllib.loads((REPOSITORY / "recipes" / "ci.toml").read_text())
    short["run"] |= {"name": "short", "steps": STEPS}
    short["data"]["eval_problems"] = 4
    short["evaluation"]["every_steps"] = STEPS
    short["checkpoint"]["every_steps"] = STEPS // 2
    short["agent"] |= {"tools": ["tests.serve.gated_calculator:calculator"], "tool_timeout_seconds": SECONDS}
    short["rollout"] |= {"problems_per_step": 4, "chains": 4}
    (folder / "recipes" / "short.toml").write_text(tomli_w.dumps(short))
    registry = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    for entry in registry["deployments"]:
        if entry["name"] == "prepare-gsm8k":
            entry["schedules"] = [{"interval": 3, "active": True}]
            entry["parameters"] = {"config": {"recipe": "recipes/short.toml"}}
            entry["concurrency_limit"] = {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    (folder / "prefect.yaml").write_text(yaml.safe_dump(registry))
    return folder


@pytest.fixture(scope="module")
def served(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    root, output, ports = folder / "runs", folder / "output", (free_port(), free_port())
    with postgres("prefect", "mlflow") as port:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "160",
            "GATE": str(folder / "gate"),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://agentfly:none@127.0.0.1:{port}/prefect",
            "MLFLOW_BACKEND_STORE_URI": f"postgresql://agentfly:none@127.0.0.1:{port}/mlflow",
            # How often the server plans scheduled runs, and the worker asks for runs.
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_WORKER_PREFETCH_SECONDS": "1",
        }
        for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "PREFECT_HOME"):
            environment.pop(name, None)
        options = ["--root", str(root), "--prefect-port", str(ports[0]), "--mlflow-port", str(ports[1])]
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "agentfly_lib", "serve", *options],
                cwd=project,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        prefect, mlflow = (f"http://127.0.0.1:{port}" for port in ports)
        served = Served(process, project, root, f"{prefect}/api", mlflow, output, folder / "gate", environment)
        try:
            until(lambda: "healthy after" in output.read_text(), f"healthy: {output}", process)
            yield served
        finally:
            for client in served.clients:
                client.kill()
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(PATIENCE)
                finally:
                    process.kill()


def test_it_says_where_everything_is(served: Served) -> None:
    text = served.output.read_text()
    assert "Prefect's database is the one that PREFECT_SERVER_DATABASE_CONNECTION_URL names: " in text
    assert "postgresql+asyncpg://agentfly:***@127.0.0.1" in text
    assert "none@" not in text
    assert f" Prefect  {served.prefect.removesuffix('/api')}\n  MLflow  {served.mlflow}\n" in text
    assert httpx.get(served.prefect.removesuffix("/api"), timeout=60, trust_env=False).status_code == 200
    assert not (served.root / "mlflow.db").exists()
    assert not list((served.root / "prefect").glob("*.db"))


def test_nothing_listens_beyond_this_machine(served: Served, listening: Callable[[int], set[str]]) -> None:
    assert listening(served.process.pid) <= {"127.0.0.1", "::1"}


def test_a_second_registration_leaves_the_page_alone(served: Served) -> None:
    registry = read_registry(served.project, served.root)
    assert register(registry, PrefectAPI(served.prefect), served.root / "serve") is False
    queue = served.ask("work_pools/agentfly/queues/device", method="GET")
    assert queue["concurrency_limit"] == 1
    on_server = {entry["name"]: entry for entry in served.ask("deployments/filter", {})}
    assert set(on_server) == registry.names
    assert on_server["demo"]["work_queue_name"] == "device"
    assert on_server["nightly"]["tags"] == ["evaluate", "nightly"]
    assert on_server["nightly"]["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
    automations = served.ask("automations/filter", {})
    assert [(entry["name"], entry["enabled"]) for entry in automations] == [("checkpoint__automation_1", False)]


def test_a_schedule_fires(served: Served) -> None:
    def done() -> list[dict[str, Any]]:
        runs = served.flow_runs("prepare-gsm8k")
        return [run for run in runs if run["auto_scheduled"] and run["state"]["name"] in ("Completed", "Failed")]

    first = until(done, "a scheduled run", served.process)[0]
    assert first["state"]["name"] == "Completed", first["state"]["message"]
    (deployment,) = [entry for entry in served.ask("deployments/filter", {}) if entry["name"] == "prepare-gsm8k"]
    (schedule,) = served.ask(f"deployments/{deployment['id']}/schedules", method="GET")
    assert (schedule["active"], schedule["schedule"]["interval"]) == (True, 3)
    served.ask(f"deployments/{deployment['id']}/schedules/{schedule['id']}", method="DELETE")
    served.ask("flow_runs/bulk_delete", {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}})
    assert list((served.root / "datasets").iterdir())


def test_a_run_is_triggered_cancelled_and_resumed_over_the_death_of_its_server(served: Served) -> None:
    client = served.train()
    output, _ = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, output
    assert "train/recipe: " in output
    run = output.split("/flow-run/")[1].split()[0]
    directory = RunDirectory(served.root / "short")

    def processes(run: str) -> set[int]:
        """Of a flow run: its own, and all that it has started."""
        return processes_marked(f"PREFECT__FLOW_RUN_ID={run}")

    def titles(run: str) -> str:
        found = []
        for pid in processes(run):
            try:
                found.append(" ".join(psutil.Process(pid).cmdline()))
            except psutil.Error:
                continue
        return "\n".join(found)

    def everything(run: str) -> bool:
        """Engine, learner and sandboxes are up, and rollouts of the step that waits at the gate are being collected."""
        now = titles(run)
        return directory.step(1).rollouts.exists() and all(
            title in now for title in ("ray::EngineServer", "ray::LearnerActor", "bwrap")
        )

    until(lambda: everything(run), "engine, learner and rollouts", served.process)
    served.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False})
    until(lambda: served.state(run) == "Cancelled", "the end of a cancelled run", served.process)
    until(lambda: not processes(run), "the end of all its processes", served.process)
    until(lambda: served.mlflow_status() == ["KILLED"], "MLflow knows", served.process)
    assert directory.first_open_step(STEPS) == 1

    client = served.train("--wait")
    others = until(lambda: [each for each in served.flow_runs("recipe") if each["id"] != run], "another run", client)
    until(lambda: everything(others[0]["id"]), "the resumed run at work", client)
    server = [
        process
        for process in psutil.Process(served.process.pid).children(recursive=True)
        if {"prefect", "server", "start"} <= set(process.cmdline())
    ]
    assert server
    os.killpg(server[0].pid, signal.SIGKILL)
    until(lambda: "the Prefect server is back" in served.output.read_text(), "another server", served.process)
    served.gate.touch()
    output, _ = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, output
    assert output.rstrip().endswith("Completed")
    assert directory.first_open_step(STEPS) == STEPS
    assert directory.checkpoint(STEPS).exists()
    assert {balance.balanced for balance in run_balance(directory)} == {True}
    until(lambda: served.mlflow_status() == ["FINISHED"], "MLflow knows", served.process)

    def told() -> set[tuple[str, str]]:
        events = served.ask("events/filter", {"filter": {"event": {"name": ["agentfly.checkpoint.saved"]}}})["events"]
        return {(event["resource"]["prefect.resource.id"], event["payload"]["path"]) for event in events}

    saved = {("agentfly.run.short", str(directory.checkpoint(each).resolve())) for each in (STEPS // 2, STEPS)}
    until(lambda: told() == saved, "the server is told of the checkpoints", served.process)


def test_ctrl_c_ends_everything(served: Served) -> None:
    mark = next(
        value
        for value in Path(f"/proc/{psutil.Process(served.process.pid).children()[-1].pid}/environ")
        .read_text()
        .split("\0")
        if value.startswith("AGENTFLY_LEASH=")
    )
    assert len(processes_marked(mark)) >= 3
    assert json.loads((served.root / "serve" / "serve.json").read_text())["prefect"] == served.prefect
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(PATIENCE) == 0
    assert processes_marked(mark) == set()
    assert not (served.root / "serve" / "serve.json").exists()
    for url in (f"{served.prefect}/health", f"{served.mlflow}/health"):
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, trust_env=False)
