"""What the two servers and the worker are called with. Their stores lie in one folder, unless they are named elsewhere:

<root>/prefect/    Prefect's database      or PREFECT_SERVER_DATABASE_CONNECTION_URL
<root>/mlflow.db   MLflow's database       or MLFLOW_BACKEND_STORE_URI
<root>/mlartifacts MLflow's files
<root>/serve/      logs, and what was registered
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from agentfly_lib.loopback import reachable_host
from agentfly_lib.serve.child import Child
from agentfly_lib.serve.prefect_api import PrefectAPI

__all__ = ["STORES", "mlflow_server", "prefect_server", "prefect_url", "worker"]

STORES: Mapping[str, str] = {
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "Prefect's database",
    "MLFLOW_BACKEND_STORE_URI": "MLflow's database",
}
"""Variables of the servers' own that name a store elsewhere."""

_WORKER_STOP_SECONDS = 60.0
"""A run that is stopped ends its engines and learner, and delivers its metrics."""


def prefect_url(host: str, port: int) -> str:
    """The address of the Prefect server's API, for this machine's own processes."""
    return f"http://{reachable_host(host)}:{port}/api"


def prefect_server(root: Path, host: str, port: int, *, services: bool) -> Child:
    """The Prefect server; `services` run schedules and automations, and note which workers are alive."""
    api = PrefectAPI(prefect_url(host, port))
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", host, "--port", str(port)]
    return Child(
        name="Prefect server",
        command=command if services else [*command, "--no-services"],
        # The page asks the server that it came from, by whatever name the browser knows it.
        environment={"PREFECT_API_URL": api.url, "PREFECT_UI_API_URL": "/api"},
        log=_log(root, "prefect"),
        healthy=api.healthy,
    )


def mlflow_server(root: Path, host: str, port: int) -> Child:
    """The MLflow server."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    if "MLFLOW_BACKEND_STORE_URI" not in os.environ:
        command += ["--backend-store-uri", f"sqlite:///{(root / 'mlflow.db').resolve()}"]
    if "MLFLOW_ARTIFACTS_DESTINATION" not in os.environ:
        command += ["--artifacts-destination", str((root / "mlartifacts").resolve())]
    return Child(
        name="MLflow server",
        command=command,
        # Its runner of jobs judges traces by models; it is eight processes, of which runs need none.
        environment={
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": os.environ.get("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        },
        log=_log(root, "mlflow"),
        healthy=_answers(f"http://{reachable_host(host)}:{port}/health"),
    )


def worker(root: Path, pool: str, *, api: PrefectAPI, tracking: str) -> Child:
    """A worker that runs flows as processes of this machine, with both servers named to them."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"]
    return Child(
        name="worker",
        command=command,
        environment={"PREFECT_API_URL": api.url, "MLFLOW_TRACKING_URI": tracking},
        log=_log(root, "worker"),
        healthy=lambda: api.pool_exists(pool) and api.workers_online(pool) > 0,
        stop_seconds=_WORKER_STOP_SECONDS,
    )


def _answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            return httpx.get(url, timeout=5.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    return ask


def _log(root: Path, name: str) -> Path:
    return root / "serve" / f"{name}.log"
