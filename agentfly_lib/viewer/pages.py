"""Serves the Prefect and MLflow pages over the local stores of `<root>`, each in a process of its own, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentfly_lib.errors import UserError

__all__ = ["serve_pages"]


_START_SECONDS = 180.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Page:
    name: str
    url: str
    health: str
    command: Sequence[str]
    environment: Mapping[str, str]


def serve_pages(root: Path, *, host: str, prefect_port: int, mlflow_port: int) -> None:
    """Starts both servers, prints their addresses once they answer, and stops them on Ctrl-C.

    Raises `UserError` if `root` holds no runs, a port is taken, or a server does not come up.
    """
    database = (root / "mlflow.db").resolve()
    if not database.exists():
        raise UserError(f"{root} holds no runs yet (no {database.name}); train something first, or name another --root")
    pages = [
        _prefect(host, prefect_port),
        _mlflow(host, mlflow_port, database, (root / "mlartifacts").resolve()),
    ]
    for port, option in ((prefect_port, "--prefect-port"), (mlflow_port, "--mlflow-port")):
        _check_free(host, port, option)
    console = Console()
    with ExitStack() as stack:
        processes = {page.name: stack.enter_context(_running(page)) for page in pages}
        for page in pages:
            _wait(page, processes[page.name])
            console.print(f"{page.name:>8}  {page.url}", highlight=False)
        console.print("Ctrl-C stops both.")
        try:
            while True:
                for name, process in processes.items():
                    if process.poll() is not None:
                        raise UserError(f"the {name} server ended with exit status {process.returncode}")
                time.sleep(1)
        except KeyboardInterrupt:
            console.print("stopping")


def _prefect(host: str, port: int) -> _Page:
    url = f"http://{host}:{port}"
    return _Page(
        name="Prefect",
        url=url,
        health=f"{url}/api/health",
        command=[
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            host,
            "--port",
            str(port),
            "--no-services",
        ],
        environment={"PREFECT_UI_API_URL": f"{url}/api", "PREFECT_API_URL": f"{url}/api"},
    )


def _mlflow(host: str, port: int, database: Path, artifacts: Path) -> _Page:
    url = f"http://{host}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", str(artifacts)]
    return _Page(name="MLflow", url=url, health=f"{url}/health", command=[*command, *store], environment={})


class _running:  # noqa: N801 - reads as a clause: `with _running(page) as process`
    def __init__(self, page: _Page) -> None:
        self._page = page

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._page.command,
            env=os.environ | dict(self._page.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(_STOP_SECONDS)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
            else:
                return


def _check_free(host: str, port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"{host}:{port} cannot be used ({error.strerror}); choose another with {option} PORT"
            ) from error


def _wait(page: _Page, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UserError(
                f"the {page.name} server ended with exit status {process.returncode} instead of starting; "
                f"see what it says: {' '.join(page.command)}"
            )
        try:
            with urllib.request.urlopen(page.health, timeout=2):  # noqa: S310 - our own http address
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    raise UserError(f"the {page.name} server did not answer at {page.health} within {_START_SECONDS:.0f} s")
