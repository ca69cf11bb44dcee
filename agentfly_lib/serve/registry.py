"""What `prefect.yaml` registers, and whether a server has it already.

Registering resets what was changed in the page, such as a schedule that was switched on; so it is done when the file
has changed or the server lacks a deployment, and not at every start.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import yaml

from agentfly_lib.errors import ConfigError, UserError
from agentfly_lib.loopback import without_password
from agentfly_lib.serve.child import tail
from agentfly_lib.serve.prefect_api import PrefectAPI
from agentfly_lib.store.atomic import write_bytes, write_json

__all__ = ["Registry", "read_registry", "register"]

_RUNS = "runs"
"""Folder of all runs, as recipes and prefect.yaml name it."""
_REGISTER_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Registry:
    """A `prefect.yaml`, as it is registered."""

    folder: Path
    """Where it lies, with flows and recipes beside it; flow runs work there."""
    document: Mapping[str, Any]

    @property
    def names(self) -> set[str]:
        """The deployments."""
        return {entry["name"] for entry in self.document["deployments"]}

    @property
    def pool(self) -> str:
        """The work pool of the deployments."""
        (pool,) = {entry["work_pool"]["name"] for entry in self.document["deployments"]}
        return pool

    @property
    def queues(self) -> Mapping[str, int]:
        """How many flow runs of a queue may run at a time."""
        return self.document.get("definitions", {}).get("queues", {})

    @property
    def text(self) -> str:
        """The whole document, as YAML without anchors."""
        return yaml.safe_dump(dict(self.document), sort_keys=False)


def read_registry(project: Path, root: Path) -> Registry:
    """Reads `<project>/prefect.yaml`; runs go to `root`, wherever it lies.

    Raises `ConfigError` if the file is not there or is no registry of deployments in one pool.
    """
    file = project / "prefect.yaml"
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{file} is not there. Deployments need a clone of the project (prefect.yaml, flows/, recipes/): start "
            "there, name it with --project FOLDER, or serve without deployments (--no-worker)"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    try:
        pools = {entry["work_pool"]["name"] for entry in document["deployments"] if entry["name"]}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file}: each of `deployments` needs a name and a work_pool ({error!r})") from error
    if len(pools) != 1:
        raise ConfigError(f"{file}: one worker serves one pool, and the deployments name {', '.join(sorted(pools))}")
    if root.resolve() != (project / _RUNS).resolve():
        document["deployments"] = [_moved(entry, root.resolve()) for entry in document["deployments"]]
    return Registry(project.resolve(), document)


def register(registry: Registry, api: PrefectAPI, folder: Path) -> bool:
    """Registers the deployments and the limits of their queues, unless this server has them. `folder` keeps what was
    registered, and the log.

    Returns whether anything was done. Raises `UserError` if the server refuses.
    """
    known = folder / "registered.json"
    digest = hashlib.sha256(f"{api.url}\n{registry.folder}\n{registry.text}".encode()).hexdigest()
    try:
        if _known(known) == digest and registry.names <= api.deployments():
            return False
        for queue, limit in registry.queues.items():
            api.limit_queue(registry.pool, queue, limit)
    except httpx.HTTPError as error:
        raise UserError(
            f"the Prefect server at {without_password(api.url)} did not list its deployments: {error}"
        ) from error
    file, log = folder / "prefect.yaml", folder / "deploy.log"
    write_bytes(file, registry.text.encode())
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    environment = os.environ | {"PREFECT_API_URL": api.url, "PWD": str(registry.folder)}
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=registry.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_REGISTER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"registering the deployments took longer than {error.timeout:.0f} s; see {log}") from error
    if done.returncode or not registry.names <= api.deployments():
        raise UserError(
            f"the deployments of {registry.folder / 'prefect.yaml'} were not registered. {log}:\n{tail(log)}"
        )
    write_json(known, {"digest": digest})
    return True


def _known(file: Path) -> str | None:
    try:
        return json.loads(file.read_bytes())["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _moved(entry: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """A deployment whose runs lie in `root`."""
    parameters = {name: _path_in(value, root) for name, value in entry.get("parameters", {}).items()}
    config = parameters.get("config")
    if isinstance(config, Mapping):
        config = {name: _path_in(value, root) for name, value in config.items()}
        parameters["config"] = config | {"run": {**config.get("run", {}), "root": str(root)}}
    return {**entry, "parameters": parameters} if parameters else dict(entry)


def _path_in(value: Any, root: Path) -> Any:
    if isinstance(value, str) and PurePosixPath(value).parts[:1] == (_RUNS,):
        return str(root.joinpath(*PurePosixPath(value).parts[1:]))
    return value
