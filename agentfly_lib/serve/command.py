"""`agentfly serve`: everything that deployments need on one machine, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from agentfly_lib.errors import UserError
from agentfly_lib.loopback import is_loopback, open_to_all, reachable_host, without_password
from agentfly_lib.serve.child import Child
from agentfly_lib.serve.keeper import Keeper
from agentfly_lib.serve.pages import START_SECONDS
from agentfly_lib.serve.ports import check_free, check_host
from agentfly_lib.serve.prefect_api import PrefectAPI
from agentfly_lib.serve.registry import Registry, read_registry, register
from agentfly_lib.serve.servers import STORES, mlflow_server, prefect_server, prefect_url, worker
from agentfly_lib.store.atomic import write_json
from agentfly_lib.visible import visible

__all__ = ["ServeOptions", "serve", "served_api"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of the command."""

    root: Path
    """Folder of all runs, of both servers' stores, and of the logs."""
    project: Path
    """Where prefect.yaml, flows and recipes are."""
    host: str
    prefect_port: int
    mlflow_port: int
    worker: bool = True
    """Also a worker, and the deployments."""


def serve(options: ServeOptions, *, until: Callable[[], bool] = lambda: False) -> None:
    """Starts servers and worker, registers the deployments, says where everything is, and keeps it alive until Ctrl-C,
    SIGTERM, or `until` says so.

    A server that the environment names (`PREFECT_API_URL`, `MLFLOW_TRACKING_URI`) is used, and none started.

    Raises `UserError` before anything is started if a port is taken, the folder is served already, or there is no
    prefect.yaml; and later if something does not come up or keeps dying.
    """
    console = Console()

    def say(text: str) -> None:
        console.print(visible(text), highlight=False, soft_wrap=True)

    registry = read_registry(options.project, options.root) if options.worker else None
    check_host(options.host)
    servers, api, tracking = _servers(options)
    folder = options.root / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, options.root), _sigterm_is_ctrl_c(), Keeper(say) as keeper:
        (folder / "serve.json").unlink(missing_ok=True)  # of one that was killed
        _say_what_is_named(say)
        if not is_loopback(options.host):
            say(open_to_all(options.host, "read and change every run, and run code on this machine as you"))
        began = time.monotonic()
        say(f"starting: {', '.join(server.name for server in servers) or 'no server'}; logs are in {folder}")
        try:
            for server in servers:
                keeper.start(server)
            keeper.wait([server.name for server in servers], START_SECONDS)
            if registry is not None:
                say(_start_worker(keeper, registry, api, tracking, options.root))
            write_json(folder / "serve.json", {"prefect": api.url, "pid": os.getpid()})
            say(f" Prefect  {without_password(api.url).removesuffix('/api')}\n  MLflow  {without_password(tracking)}")
            say(f"healthy after {time.monotonic() - began:.1f} s; Ctrl-C ends everything")
            keeper.watch(until)
        except KeyboardInterrupt:
            say("stopping; a run that is interrupted goes on when it is started again")
        finally:
            (folder / "serve.json").unlink(missing_ok=True)


def _servers(options: ServeOptions) -> tuple[list[Child], PrefectAPI, str]:
    """The servers to start, the API of the Prefect server, and the address of the MLflow server."""
    servers = []
    if elsewhere := os.environ.get("PREFECT_API_URL"):
        api = PrefectAPI(elsewhere)
        if not api.healthy():
            shown = without_password(elsewhere)
            raise UserError(f"PREFECT_API_URL = {shown}: no Prefect server answers there; unset it to start one")
    else:
        check_free(options.host, options.prefect_port, "--prefect-port")
        api = PrefectAPI(prefect_url(options.host, options.prefect_port))
        servers.append(prefect_server(options.root, options.host, options.prefect_port, services=True))
    tracking = os.environ.get("MLFLOW_TRACKING_URI")
    if tracking is None:
        check_free(options.host, options.mlflow_port, "--mlflow-port")
        tracking = f"http://{reachable_host(options.host)}:{options.mlflow_port}"
        servers.append(mlflow_server(options.root, options.host, options.mlflow_port))
    return servers, api, tracking


def _start_worker(keeper: Keeper, registry: Registry, api: PrefectAPI, tracking: str, root: Path) -> str:
    """The worker makes its pool, which deployments need; says what was done."""
    taker = worker(root, registry.pool, api=api, tracking=tracking)
    keeper.start(taker)
    keeper.wait_until(lambda: api.pool_exists(registry.pool), f"the worker's pool {registry.pool!r}", START_SECONDS)
    new = register(registry, api, root / "serve")
    keeper.wait([taker.name], START_SECONDS)
    return f"{len(registry.names)} deployments {'registered' if new else 'are registered as before'}"


def served_api(root: Path) -> str | None:
    """The API of the Prefect server that `agentfly serve` keeps over a folder of runs, if one does."""
    try:
        return str(json.loads((root / "serve" / "serve.json").read_bytes())["prefect"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _say_what_is_named(say: Callable[[str], None]) -> None:
    named = {"PREFECT_API_URL": "the Prefect server", "MLFLOW_TRACKING_URI": "the MLflow server", **STORES}
    for variable, what in named.items():
        if value := os.environ.get(variable):
            say(f"{what} is the one that {variable} names: {without_password(value)}")


@contextlib.contextmanager
def _alone(folder: Path, root: Path) -> Iterator[None]:
    lock = FileLock(folder / "serve.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(f"{root} is served already, by another agentfly serve; end that, or name another --root") from (
            error
        )
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """A service manager ends us as a person does; and SIGINT counts too where a shell began us in the background."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
