"""The Prefect and MLflow pages over the runs of a folder, without worker and schedules, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from agentfly_lib.errors import UserError
from agentfly_lib.loopback import is_loopback, open_to_all, reachable_host
from agentfly_lib.serve.keeper import Keeper
from agentfly_lib.serve.ports import check_free
from agentfly_lib.serve.servers import mlflow_server, prefect_server

__all__ = ["START_SECONDS", "serve_pages"]

START_SECONDS = 180.0


def serve_pages(root: Path, *, host: str, prefect_port: int, mlflow_port: int) -> None:
    """Starts both servers, prints their addresses once they answer, and stops them on Ctrl-C.

    Raises `UserError` if `root` holds no runs, a port is taken, or a server does not come up.
    """
    database = (root / "mlflow.db").resolve()
    if not database.exists():
        raise UserError(f"{root} holds no runs yet (no {database.name}); train something first, or name another --root")
    check_free(host, prefect_port, "--prefect-port")
    check_free(host, mlflow_port, "--mlflow-port")
    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False)

    if not is_loopback(host):
        say(open_to_all(host, "read and change every run"))
    with Keeper(say) as keeper:
        servers = [prefect_server(root, host, prefect_port, services=False), mlflow_server(root, host, mlflow_port)]
        for server in servers:
            keeper.start(server)
        keeper.wait([server.name for server in servers], START_SECONDS)
        shown = reachable_host(host)
        say(f" Prefect  http://{shown}:{prefect_port}\n  MLflow  http://{shown}:{mlflow_port}\nCtrl-C stops both.")
        try:
            keeper.watch()
        except KeyboardInterrupt:
            say("stopping")
