"""Starts a flow run of a deployment, from wherever its server can be reached, and follows it if that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import WorkerStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.urls import url_for

from agentfly_lib.configs.load import lay_over
from agentfly_lib.errors import ConfigError
from agentfly_lib.loopback import without_password

__all__ = ["FlowRunEnd", "trigger"]

_LOOK_SECONDS = 2.0
_ANY_RECIPE = "recipe"
"""The deployment for recipes that no other is about."""


@dataclass(frozen=True, slots=True)
class FlowRunEnd:
    """What became of a flow run."""

    page: str
    """Its page."""
    deployment: str
    state: str
    """`Scheduled` if nobody waited; else what it ended in: `Completed`, `Failed`, `Cancelled`, `Crashed`."""
    message: str


async def trigger(
    recipe: Path,
    changes: Mapping[str, Any],
    *,
    files: Mapping[str, Path],
    name: str | None,
    served: str | None,
    root: Path,
    wait: bool,
    say: Callable[[str], None],
) -> FlowRunEnd:
    """Starts a flow run of a `train` deployment with this recipe.

    Args:
        changes: keys of the recipe to change, nested as in it.
        files: what the recipe reads its problems from, by the keys that name them.
        name: the deployment; the one whose recipe this is if None, else `recipe`.
        served: the API of a server to ask if Prefect's own settings name none; `agentfly serve` keeps it over `root`.
        wait: until the flow run has ended; `say` hears of its states.

    Raises `ConfigError` if there is no server, no such deployment, no worker that would take the run, or no such file
    where it would work.
    """
    url = PREFECT_API_URL.value() or served
    if url is None:
        raise ConfigError(
            f"--deploy needs a Prefect server, and no agentfly serve keeps one over {root} (run.root): start one in "
            f"another terminal (agentfly serve --root {root}), name the folder of one that runs with --set "
            "run.root=DIR, or name a server with PREFECT_API_URL"
        )
    shown = without_password(url)
    with temporary_settings({PREFECT_API_URL: url}):
        async with get_client() as client:
            try:
                deployment = await _deployment(client, recipe, name, shown)
                await _check_worker(client, deployment)
                _check_files(deployment, files)
                config = lay_over(_given(deployment, recipe), {"recipe": _recipe_for(deployment, recipe), **changes})
                run = await client.create_flow_run_from_deployment(deployment.id, parameters={"config": config})
            except httpx.HTTPError as error:
                raise ConfigError(
                    f"no Prefect server answers at {shown} ({error}); start one (agentfly serve), or correct "
                    "PREFECT_API_URL"
                ) from error
            page = url_for(run) or f"{shown}/flow_runs/{run.id}"
            say(f"train/{deployment.name}: {run.name}\n{page}")
            ended = FlowRunEnd(page, deployment.name, "Scheduled", "")
            return await _follow(client, run.id, ended, say) if wait else ended


async def _deployment(client: PrefectClient, recipe: Path, name: str | None, url: str) -> DeploymentResponse:
    found = {
        entry.name: entry for entry in await client.read_deployments() if entry.entrypoint == "flows/train.py:train"
    }
    if name is None:
        about = [key for key, entry in found.items() if _same_recipe(entry, recipe)]
        name = sorted(about)[0] if about else _ANY_RECIPE
    if name not in found:
        raise ConfigError(
            f"the server at {url} has no deployment train/{name}; it has {', '.join(sorted(found)) or 'none'}. "
            "Register those of prefect.yaml: agentfly serve does, or prefect deploy --all"
        )
    return found[name]


async def _check_worker(client: PrefectClient, deployment: DeploymentResponse) -> None:
    pool = deployment.work_pool_name
    if pool is None:
        return
    try:
        workers = await client.read_workers_for_work_pool(pool)
    except ObjectNotFound:
        workers = []
    if not any(worker.status == WorkerStatus.ONLINE for worker in workers):
        raise ConfigError(
            f"no worker is online for the work pool {pool!r} of train/{deployment.name}; start one: agentfly serve, or "
            f"prefect worker start --pool {pool}"
        )


def _check_files(deployment: DeploymentResponse, files: Mapping[str, Path]) -> None:
    """A recipe's paths are seen from where a flow run works, which need not be this process's folder."""
    folder = _working_folder(deployment)
    for key, file in files.items():
        if folder is not None and not (folder / file).is_file():
            remedy = f"name its whole path, {file.absolute()}" if file.is_file() else f"set {key} to an existing file"
            raise ConfigError(
                f"{key} = {file}: no such file, seen from {folder}, where train/{deployment.name} runs; {remedy}"
            )


def _working_folder(deployment: DeploymentResponse) -> Path | None:
    """Where the deployment's flow runs begin, if that is a folder of this machine."""
    for step in deployment.pull_steps or []:
        folder = step.get("prefect.deployments.steps.set_working_directory", {}).get("directory")
        if folder and Path(folder).is_dir():
            return Path(folder)
    return None


def _same_recipe(deployment: DeploymentResponse, recipe: Path) -> bool:
    named = (deployment.parameters.get("config") or {}).get("recipe")
    folder = _working_folder(deployment)
    if named is None or folder is None:
        return named is not None and Path(named) == recipe
    return (folder / named).resolve() == recipe.resolve()


def _given(deployment: DeploymentResponse, recipe: Path) -> Mapping[str, Any]:
    """What the deployment says of the config: with another recipe, only where runs lie."""
    config = deployment.parameters.get("config") or {}
    if _same_recipe(deployment, recipe):
        return config
    root = config.get("run", {}).get("root")
    return {"run": {"root": root}} if root else {}


def _recipe_for(deployment: DeploymentResponse, recipe: Path) -> str:
    """The recipe's path as the worker finds it: as it was given if the worker is elsewhere."""
    folder = _working_folder(deployment)
    if folder is None:
        return str(recipe)
    whole = recipe.resolve()
    return str(whole.relative_to(folder.resolve()) if whole.is_relative_to(folder.resolve()) else whole)


async def _follow(client: PrefectClient, run_id: Any, ended: FlowRunEnd, say: Callable[[str], None]) -> FlowRunEnd:
    seen = None
    while True:
        try:
            run = await client.read_flow_run(run_id)
        except httpx.HTTPError as error:
            say(f"the server does not answer ({type(error).__name__}); the run goes on, and is asked for again")
            await asyncio.sleep(_LOOK_SECONDS)
            continue
        state = run.state
        if state is not None and state.name != seen:
            seen = state.name
            say(f"{state.name}{': ' + state.message if state.message else ''}")
        if state is not None and state.is_final():
            return FlowRunEnd(ended.page, ended.deployment, state.name or str(state.type.value), state.message or "")
        await asyncio.sleep(_LOOK_SECONDS)
