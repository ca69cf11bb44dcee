"""Where the peers live: virtual environments of their own (`.venv-trl`), at pinned versions, made by `make peers`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["PROGRAMS", "NoPeerError", "measure", "peer_python", "peer_site_packages"]

PROGRAMS = Path(__file__).resolve().parent / "peers"
_ROOT = Path(__file__).resolve().parent.parent


class NoPeerError(Exception):
    """The peer is not installed."""


def peer_python(name: str) -> Path:
    """The interpreter of a peer's environment. Raises `NoPeerError`."""
    python = _ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        raise NoPeerError(f"{name} is not installed in {python.parents[1]}; make peers installs it")
    return python


def peer_site_packages(name: str) -> Path:
    """Where the peer's packages lie. Raises `NoPeerError`."""
    return next(peer_python(name).parents[1].glob("lib/python3*/site-packages"))


def measure(command: Sequence[str | Path], *, seconds: float = 900) -> Any:
    """What a program prints as its last line, which is JSON. Raises `RuntimeError` with its last words if it fails."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    ended = subprocess.run(
        [str(each) for each in command],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=variables,
    )
    if ended.returncode:
        raise RuntimeError(f"{command[0]} failed: {ended.stderr.strip()[-2000:]}")
    return json.loads(ended.stdout.strip().splitlines()[-1])
